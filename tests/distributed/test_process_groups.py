"""What compiled code asked of process groups is a constant in it: it is served where it is true."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from processes import Place

GROUP = """
    import torch
    torch.set_num_threads(1)
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives
    from torch.testing._internal.distributed.fake_pg import FakeStore
    import precomp

    def place(x):
        return x * dist.get_world_size() + dist.get_rank()

    def after_a_break(x):
        x = x * 2
        torch._dynamo.graph_break()
        return x + dist.get_rank()

    def of_a_group(x, group):
        return x * group.size()

    def collective(x, group):
        return collectives.all_gather_tensor(x * 2, 0, group) + 1

    def initialized(x):
        return x + 1 if dist.is_initialized() else x - 1

    def plain(x):
        return x.sin() + 1

    def of_another_group(x, group):
        return x * group.size() + 2

    def join(rank, count, unused=0, other=1):
        # Further groups: one of so many ranks, and one that nothing uses.
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        OTHER.append(dist.new_group(list(range(rank, rank + other))))
        if unused:
            dist.new_group([rank])

    OTHER = []
    X = torch.linspace(0, 1, 4)
    def run():
        world = dist.group.WORLD if dist.is_initialized() else None
        found = {}
        groups = {of_a_group: world, collective: world, of_another_group: (*OTHER, None)[0]}
        # Refused: guards on the identity of groups, the ContextVar behind an option of torch.
        if torch.__version__.startswith("2.11."):
            groups = {}
        if torch.__version__.startswith("2.14."):
            del groups[collective]
        for f in (place, after_a_break, *groups, initialized, plain):
            arguments = (X, groups[f]) if f in groups else (X,)
            if f in (initialized, plain) or world is not None:
                try:
                    found[f.__name__] = torch.compile(f)(*arguments).tolist()
                except precomp.CompileViolation as violation:
                    found[f.__name__] = violation.why
        return found
"""

CAPTURE = f"""{GROUP}
    join(0, 2, 1)
    with precomp.capture() as capture:
        found = run()
    capture.finalize(sys.argv[1], group=False)
    done(**found)
"""

SERVE = f"""{GROUP}
    path, *where = sys.argv[1:]
    if where:
        join(*map(int, where))
    precomp.prepare(path, runtime="lean")
    done(**run())
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory, inductor_cache):
    """The artifact of rank 0 of 2, and what it computed."""
    place = Place(tmp_path_factory.mktemp("captured"), cache=inductor_cache)
    path = place.root / "groups.precomp"
    done = place.script(CAPTURE, path)
    # Names of torch.distributed warn when they are looked at.
    assert "Warning" not in done.stderr
    return path, done.facts


def serve(captured, tmp_path, *where):
    path, expected = captured
    found = Place(tmp_path, compiler=False).script(SERVE, path, *where).facts
    return found, dict(expected)


def test_where_the_captured_rank_was_all_is_served(captured, tmp_path):
    found, expected = serve(captured, tmp_path, 0, 2)
    assert found == expected


@pytest.mark.skipif(
    version("torch").startswith("2.11."), reason="functions that are given groups are refused"
)
def test_a_group_of_other_ranks_is_a_miss(captured, tmp_path):
    found, expected = serve(captured, tmp_path, 0, 2, 0, 2)
    why = found.pop("of_another_group")
    assert why == (
        "it depends on ranks: process group '1' had the ranks (0,), has the ranks (0, 1)"
    )
    assert expected.pop("of_another_group") != why
    assert found == expected


@pytest.mark.parametrize(
    ("where", "words"),
    [((1, 2), "on rank 1 of 2"), ((0, 4), "on rank 0 of 4"), ((), "outside of a process group")],
)
def test_elsewhere_what_asked_is_a_miss(captured, tmp_path, where, words):
    found, expected = serve(captured, tmp_path, *where)
    assert found.pop("plain") == expected["plain"]
    assert found.keys() == ({*expected} - {"plain"} if where else {"initialized"})
    for why in found.values():
        assert why == f"it depends on ranks: captured on rank 0 of 2, this is {words}"
