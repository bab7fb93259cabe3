"""The harness, offline and with its files in a temporary folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture(scope="session")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """evaluate(model, ["choice", ...], **options): what ``simple_evaluate`` gives on tasks of the folder ``tasks``."""
    pytest.importorskip("lm_eval", reason="needs the extra: pip install '.[eval]'")
    import datasets  # pyright: ignore[reportMissingImports]
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    # Without reading the thousands of files that describe its own tasks, which takes seconds.
    tasks_of = TaskManager(include_defaults=False)

    def call(model: Any, tasks: list[str], **options: Any) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
            patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
            patch.chdir(TASKS)
            results = simple_evaluate(
                model,
                tasks=[f"{task}.yaml" for task in tasks],
                task_manager=tasks_of,
                bootstrap_iters=0,
                **options,
            )
        assert results is not None
        return results

    return call
