"""Many ranks, one artifact: agreement, one finalize, and violations that all hear of."""

DEFAULT_TIMEOUT = 20.0  # seconds without a sign of life from a rank
