from __future__ import annotations

import pytest

from tunefleet.observability.step_line import readable, step_line

PRINTED = (
    "{'loss': '0.9816', 'grad_norm': '0.613', 'learning_rate': '0.003839', 'entropy': '1.132', "
    "'mean_token_accuracy': '0.8268', 'num_tokens': '1.719e+04', 'epoch': '0.08', 'num_input_tokens_seen': 17189, "
    "'train_runtime': '15.3', 'train_tokens_per_second': '1124'}"
)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (PRINTED, "epoch 0.08  loss 0.982  lr 3.8e-03  grad norm 0.613  token accuracy 0.827"),
        ("{'loss': 2.1042, 'learning_rate': 3e-4, 'epoch': 1}", "epoch 1  loss 2.10  lr 3.0e-04"),
        ("{'eval_loss': 1.5, 'eval_runtime': 3.1, 'epoch': 2.0}", "epoch 2  eval loss 1.50"),
        ("{'loss': nan}", "{'loss': nan}"),
        ("{'loss': 'nan', 'rewards/margins': '0.25'}", "loss nan  rewards/margins 0.25"),
        ("{'name': 'Dan', 'count': 83}", "{'name': 'Dan', 'count': 83}"),
        ("{'loss': tensor(1.)}", "{'loss': tensor(1.)}"),
        ("{'loss': 1", "{'loss': 1"),
        ("Loading {'loss': 1}", "Loading {'loss': 1}"),
        ("", ""),
    ],
)
def test_what_a_trainer_prints_is_one_readable_line(printed: str, shown: str) -> None:
    assert readable(printed) == shown


def test_a_step_takes_the_place_of_the_epoch() -> None:
    values = {"loss": 2.1, "learning_rate": 3e-4, "grad_norm": 1.2, "epoch": 0.5}
    assert step_line(values, 40, 80) == "step 40/80  loss 2.10  lr 3.0e-04  grad norm 1.20"
    assert step_line({"loss": 0}, 40) == "step 40  loss 0"
