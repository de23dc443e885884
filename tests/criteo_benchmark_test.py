"""What `make bench-criteo` says of its figures. Covers benchmarks/criteo/run.py and workload.py."""

import numpy as np

from benchmarks.criteo import run, workload


def make_figures(ours: float, peer: float, losses: tuple[float, float] = (0.5, 0.5)) -> run.Figures:
    figures = run.Figures()
    figures.rounds = [((ours, 60.0), (peer, 60.0))] * 3
    figures.losses = losses
    return figures


def test_bars_are_those_of_fbgemm_and_of_the_best_of_the_others() -> None:
    figures = {
        run.FBGEMM: make_figures(160.0, 100.0),
        "torch, Embedding": make_figures(160.0, 50.0),
        "Keras 2, sparse": make_figures(160.0, 80.0),
    }
    assert list(run.verdicts(figures)) == [
        "PASS: ours is 1.60x torch, fbgemm, the bar is 1.6x",
        "MISS: ours is 2.00x the best of the others (Keras 2, sparse), the bar is 2.5x",
    ]


def test_another_loss_and_a_missing_peer_are_told() -> None:
    missing = run.Figures()
    missing.missing = "no wheel"
    figures = {run.FBGEMM: make_figures(2.0, 1.0, losses=(0.5, 0.51)), "TFRA": missing}
    assert list(run.verdicts(figures)) == [
        "PASS: ours is 2.00x torch, fbgemm, the bar is 1.6x",
        "MISS: another training: the loss of torch, fbgemm is 0.5100, ours 0.5000",
    ]
    assert "left out: no wheel" in "\n".join(run.report({(10, workload.MLP): figures}))


def test_all_contenders_start_with_the_same_rows() -> None:
    rows = workload.ROWS_PER_PIECE + 3
    first, last = workload.initial_rows(2, rows)
    assert [len(first[0]), last[0].tolist()] == [rows - 3, [rows - 3, rows - 2, rows - 1]]
    assert np.abs(first[1]).max() <= workload.INITIAL_RANGE
    np.testing.assert_array_equal(next(workload.initial_rows(2, rows))[1], first[1])
