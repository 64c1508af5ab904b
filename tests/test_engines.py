"""Both engines make the same model for every named algorithm, also after an evaluation in between."""

import pytest
import ranks
import torch
from conftest import ALGORITHMS

MORE = {"fedmatch": ["algorithm.objective.zero_below=0.01"]}  # a model that is in evaluation mode by mistake shows


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vectorized_is_sequential_after_an_evaluation(algorithm: str) -> None:
    one, many = (
        ranks.theta(algorithm, 1, f"engine={engine}", *MORE.get(algorithm, []), evaluate=True)
        for engine in ("sequential", "vectorized")
    )
    torch.testing.assert_close(many, one, rtol=0, atol=1e-12)
