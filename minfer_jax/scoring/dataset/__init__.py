"""Files of rows, of any size, scored into files of results."""

from minfer_jax.scoring.dataset.job import SHARD_ROWS, plan
from minfer_jax.scoring.dataset.run import DatasetScores, run_here, score_dataset

__all__ = ["SHARD_ROWS", "DatasetScores", "plan", "run_here", "score_dataset"]
