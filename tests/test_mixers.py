"""The contract of every mixer, found from conf/model/*.yaml: a new yaml inherits all of it.

Shapes: B batch, N tokens.
"""

import copy
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from experiments.flops import CountOperations
from gma import SequenceMixer

CONF = Path(__file__).parents[1] / "conf"
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
BIDIRECTIONAL_ONLY = ["linformer"]
CAUSAL = [model for model in MODELS if model not in BIDIRECTIONAL_ONLY]
B, DIM, HEADS = 2, 24, 3
LENGTHS = [1, 2, 63, 65, 130]


def build(model: str, causal: bool, dim: int = DIM) -> SequenceMixer:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", [f"model={model}", f"task.causal={causal}", f"backbone.num_heads={HEADS}"])
    mixer: SequenceMixer = instantiate(cfg.model)(dim)
    return mixer.double()


@pytest.fixture(
    params=[(model, False) for model in MODELS] + [(model, True) for model in CAUSAL], ids=lambda p: f"{p[0]}-{p[1]}"
)
def mixer(request: pytest.FixtureRequest) -> SequenceMixer:
    model, causal = request.param
    return build(model, causal)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=CAUSAL)
def causal_mixer(request: pytest.FixtureRequest) -> SequenceMixer:
    return build(request.param, causal=True)


def tokens(length: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(B, length, DIM, dtype=dtype)


def right_padding(length: int, real: int) -> torch.Tensor:
    return torch.arange(length) < torch.tensor([[length], [real]])


@pytest.mark.parametrize("length", LENGTHS)
def test_output_has_the_shape_and_dtype_of_the_input(mixer: SequenceMixer, length: int) -> None:
    x = tokens(length)
    y = mixer(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.isfinite().all()


@pytest.mark.parametrize("cut", [1, 64, 100])
def test_future_tokens_do_not_change_past_outputs(causal_mixer: SequenceMixer, cut: int) -> None:
    x = tokens(130)
    changed = x.clone()
    changed[:, cut:] = 10 * torch.randn_like(changed[:, cut:])
    torch.testing.assert_close(causal_mixer(changed)[:, :cut], causal_mixer(x)[:, :cut], rtol=1e-10, atol=1e-10)


def test_past_outputs_have_no_gradient_to_the_future(causal_mixer: SequenceMixer) -> None:
    x = tokens(100).requires_grad_()
    (gradient,) = torch.autograd.grad(causal_mixer(x)[:, :70].square().sum(), x)
    assert (gradient[:, 70:] == 0).all()
    assert (gradient[:, :70] != 0).any(-1).all()


def test_a_bidirectional_mixer_sees_the_whole_sequence(model: str) -> None:
    x = tokens(100).requires_grad_()
    (gradient,) = torch.autograd.grad(build(model, causal=False)(x)[:, 0].square().sum(), x)
    assert (gradient != 0).any(-1).all()


@pytest.mark.parametrize("real", [1, 64, 99])
def test_padding_on_the_right_changes_nothing(mixer: SequenceMixer, real: int) -> None:
    x, mask = tokens(100), right_padding(100, real)
    y = mixer(x, mask)
    garbage = torch.where(mask.unsqueeze(-1), x, 100 * torch.randn_like(x))
    torch.testing.assert_close(mixer(garbage, mask)[mask], y[mask], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mixer(x[1:, :real])[0], y[1, :real], rtol=1e-9, atol=1e-9)
    assert y.isfinite().all()


@pytest.mark.parametrize("real", [1, 64, 99])
def test_padding_on_the_left_changes_nothing(mixer: SequenceMixer, real: int) -> None:
    x, mask = tokens(100), right_padding(100, real).flip(1)
    y = mixer(x, mask)
    garbage = torch.where(mask.unsqueeze(-1), x, 100 * torch.randn_like(x))
    torch.testing.assert_close(mixer(garbage, mask)[mask], y[mask], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mixer(x[1:, 100 - real :])[0], y[1, 100 - real :], rtol=1e-9, atol=1e-9)
    assert y.isfinite().all()


def test_a_mask_of_real_tokens_is_no_mask(mixer: SequenceMixer) -> None:
    x = tokens(70)
    torch.testing.assert_close(mixer(x, torch.ones(B, 70, dtype=torch.bool)), mixer(x), rtol=1e-9, atol=1e-9)


def test_a_row_of_padding_alone_is_finite_with_finite_gradients(mixer: SequenceMixer) -> None:
    x = tokens(70).requires_grad_()
    y = mixer(x, right_padding(70, 0))
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())


def test_steps_equal_forward(causal_mixer: SequenceMixer) -> None:
    mixer, x = causal_mixer.float(), tokens(300, torch.float32)
    state, steps = mixer.init_state(B), []
    with torch.no_grad():
        for t in range(300):
            y, state = mixer.step(x[:, t], state)
            steps.append(y)
        torch.testing.assert_close(torch.stack(steps, 1), mixer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 130])
def test_a_prompt_read_at_once_gives_outputs_and_state_of_its_steps(causal_mixer: SequenceMixer, length: int) -> None:
    x, state = tokens(length + 5), causal_mixer.init_state(B)
    outputs, prefilled = causal_mixer.prefill(x[:, :length])
    expected = []
    with torch.no_grad():
        for t in range(length):
            y, state = causal_mixer.step(x[:, t], state)
            expected.append(y)
        torch.testing.assert_close(outputs, torch.stack(expected, 1), rtol=1e-9, atol=1e-9)
        for t in range(length, length + 5):
            y, state = causal_mixer.step(x[:, t], state)
            found, prefilled = causal_mixer.step(x[:, t], prefilled)
            torch.testing.assert_close(found, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", BIDIRECTIONAL_ONLY)
def test_a_mixer_without_causal_form_says_why(model: str) -> None:
    with pytest.raises(ValueError, match=r"causal=True is not allowed for \w+: "):
        build(model, causal=True)


def test_stepping_a_bidirectional_mixer_is_refused(model: str) -> None:
    mixer = build(model, causal=False)
    with pytest.raises(ValueError, match="needs causal=True"):
        mixer.init_state(B)
    with pytest.raises(ValueError, match="needs causal=True"):
        mixer.prefill(tokens(3))
    with pytest.raises(ValueError, match="needs causal=True"):
        mixer.step(tokens(1)[:, 0], None)


def test_gradients_are_right(mixer: SequenceMixer) -> None:
    x, mask = tokens(5).requires_grad_(), right_padding(5, 3)
    names = [name for name, _ in mixer.named_parameters()]
    parameters = [parameter.detach().requires_grad_() for parameter in mixer.parameters()]

    def output(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x, mask))

    assert torch.autograd.gradcheck(output, (x, *parameters), fast_mode=True)


def test_every_parameter_learns(mixer: SequenceMixer) -> None:
    mixer(tokens(70)).square().sum().backward()
    idle = {name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    # softmax does not feel a constant added to all scores of a query, so the bias of the keys has no effect
    assert idle <= {"k_proj.bias"}


def test_state_dict_round_trip(mixer: SequenceMixer) -> None:
    other, x = copy.deepcopy(mixer), tokens(70)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    assert not torch.equal(other(x), mixer(x))
    other.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(other(x), mixer(x), rtol=0, atol=0)


def test_bfloat16_autocast_is_finite_and_close(mixer: SequenceMixer) -> None:
    mixer, x = mixer.float(), tokens(130, torch.float32).requires_grad_()
    exact = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = mixer(x)
    rounded.float().square().sum().backward()
    error = (rounded.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.03
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_state_elements_count_the_state(causal_mixer: SequenceMixer) -> None:
    state = causal_mixer.init_state(B)
    with torch.no_grad():
        for _t in range(32):
            _, state = causal_mixer.step(tokens(1)[:, 0], state)
    held = sum(tensor[0].numel() for tensor in state if isinstance(tensor, torch.Tensor))
    declared = causal_mixer.state_elements(32)
    assert declared <= held <= 2 * declared  # a buffer may have room to grow


def test_work_a_token_grows_only_if_the_state_does(causal_mixer: SequenceMixer) -> None:
    work, state = [], causal_mixer.init_state(B)
    with torch.no_grad():
        for _t in range(200):
            with CountOperations() as count:
                _, state = causal_mixer.step(tokens(1)[:, 0], state)
            work.append(count.products + count.elementwise)
    constant = causal_mixer.state_elements(10) == causal_mixer.state_elements(200)
    assert (work[10] == work[199]) is constant


def test_heads_divide_the_width_or_are_refused(model: str) -> None:
    if hasattr(build(model, causal=False), "num_heads"):
        with pytest.raises(ValueError, match=r"num_heads=3.*divisor of dim=25"):
            build(model, causal=False, dim=25)


def test_a_mask_of_another_kind_or_shape_is_refused(mixer: SequenceMixer) -> None:
    for mask in (torch.ones(B, 70), torch.ones(B, 71, dtype=torch.bool), torch.ones(70, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"mask of .* is not allowed: it must be torch.bool \(2, 70\)"):
            mixer(tokens(70), mask)
