"""Programs that use the identity of their own objects: which other instances are served."""

from __future__ import annotations

import pytest
from processes import Place

SCRIPT = """
    import copy
    import torch
    torch.set_num_threads(1)
    import precomp
    from torch import nn

    X = torch.linspace(0, 1, 16).view(4, 4)

    class Config:
        def __init__(self, scale):
            self.scale = scale
            self.names = ["a", "b"]

    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def forward(self, x):
            config = copy.deepcopy(self.config)  # its memo holds ids of all that it meets
            config.scale += 1
            return torch.addmm(x, x, x, beta=config.scale, alpha=0)

    class Model(nn.Module):
        def __init__(self, scale, shared):
            super().__init__()
            config = Config(scale)
            self.one = Block(config)
            self.two = Block(config if shared else Config(scale))

        def forward(self, x):
            return self.two(self.one(x))

    class Tied(nn.Module):
        def __init__(self, tied):
            super().__init__()
            torch.manual_seed(0)
            self.one = nn.Linear(4, 4, bias=False)
            self.two = nn.Linear(4, 4, bias=False)
            if tied:
                self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    MAKE = {
        "shared": lambda: Model(2.0, True),
        "apart": lambda: Model(2.0, False),
        "other scale": lambda: Model(3.0, True),
        "tied": lambda: Tied(True),
        "untied": lambda: Tied(False),
    }

    def run(model):
        with torch.no_grad():
            return torch.compile(model)(X).tolist()

    def served(artifact, kinds, early):
        models = [MAKE[kind]() for kind in kinds] if early else []
        found = []
        with precomp.prepare(os.path.join(directory, artifact + ".precomp")):
            models = models or [MAKE[kind]() for kind in kinds]
            for model in models * 2:
                try:
                    with precomp.strict_no_compile():
                        found.append(run(model))
                except precomp.CompileViolation as violation:
                    found.append(violation.why)
        return found

    side, directory = sys.argv[1:3]
    if side == "capture":
        results = {}
        for kind in MAKE:
            with precomp.capture(os.path.join(directory, kind + ".precomp"), reset=True):
                results[kind] = run(MAKE[kind]())
        done(**results)
    else:
        trials = json.loads(sys.argv[3])
        done(found=[served(*trial) for trial in trials])
"""
SAME = "config is L['self']._modules['two'].config"
OTHERS = "objects whose identity the program uses are others"
SCALE = "['scale'] == 2.0, found 3.0"
WEIGHT = "['weight'] is L['self']._modules['two']"

# what was captured, the instances that call, made before prepare; what refuses them (None: served)
TRIALS = {
    "three instances": ("shared", ["shared"] * 3, False, [None] * 3),
    "three instances made before prepare": ("shared", ["shared"] * 3, True, [None] * 3),
    "another pattern first": ("shared", ["apart", "shared", "apart"], False, [SAME, None, SAME]),
    "another hyperparameter": ("shared", ["other scale", "shared"], False, [SCALE, None]),
    "different objects": ("apart", ["apart", "apart", "shared"], True, [None, None, OTHERS]),
    "tied weights": ("tied", ["tied", "untied", "tied"], False, [None, WEIGHT, None]),
    "untied weights": ("untied", ["untied", "untied"], False, [None, None]),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("instances"), cache=inductor_cache)
    results = place.script(SCRIPT, "capture", place.root).facts
    import json

    bare = Place(tmp_path_factory.mktemp("bare"), compiler=False)
    plain = json.dumps([trial[:3] for trial in TRIALS.values()])
    found = bare.script(SCRIPT, "serve", place.root, plain).facts["found"]
    return results, dict(zip(TRIALS, found, strict=True))


@pytest.mark.parametrize("name", TRIALS)
def test_instances_of_the_captured_pattern_are_served_and_others_refused(trials, name):
    results, found = trials
    _, kinds, _, reasons = TRIALS[name]
    for kind, reason, answer in zip(kinds * 2, reasons * 2, found[name], strict=True):
        if reason is None:
            assert answer == results[kind]
        else:
            assert reason in answer
