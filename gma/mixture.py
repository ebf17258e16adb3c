"""The mixture that routes: K diagonal Gaussians per head, learned by back-propagation alone.

Shapes: B batch, N tokens, H heads, K components, R routing width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gma.mixer import require
from gma.ops import routing


class GaussianMixture(nn.Module):
    """pi_k, mu_k and sigma_k^2 = softplus(omega_k) + eps_sigma of each head, and the responsibilities they give.

    The initialisation leaves routing soft and every component used, at any R: for inputs of unit variance the log
    densities, divided by the default temperature sqrt(R), differ between components by about one, and means of one norm
    leave no component nearer to all inputs than the others. The paper's plain form is ``temperature=1,
    equal_norms=False``: there every token belongs to one or two components from the start at R = 32.

    Args:
        num_heads: H. num_components: K. route_dim: R.
        temperature: tau, divides the log density (not the prior); ``None`` is sqrt(R), the paper has 1.
        learn_temperature: whether each head learns its own, from there on.
        normalize_inputs: whether inputs are first scaled to a root mean square of 1 over R.
        learning_rate_scale: times the learning rate of everything else; every parameter carries it as an attribute of
            this name, which ``experiments`` heeds and other training code may.
        mean_spread: root mean square of the coordinates of the initial means.
        equal_norms: whether initial means are normal draws scaled to one norm, mean_spread sqrt(R), or left as drawn.
        means_from_data: whether training code should call :func:`gma.start_means_from_data` before the first step;
            nothing here does.
        initial_variance: of every component in every coordinate.
        variance_floor: eps_sigma; no variance falls below it.

    Raises:
        ValueError: naming the argument, for a count below 1, a temperature, variance or floor that is not positive, a
            floor under 1e-6, a flag that is no bool, an initial variance not above the floor, or a negative spread.
    """

    def __init__(
        self,
        num_heads: int,
        num_components: int,
        route_dim: int,
        *,
        temperature: float | None = None,
        learn_temperature: bool = False,
        normalize_inputs: bool = False,
        learning_rate_scale: float = 1.0,
        mean_spread: float = 1.0,
        equal_norms: bool = True,
        means_from_data: bool = False,
        initial_variance: float = 1.0,
        variance_floor: float = 1e-4,
    ) -> None:
        super().__init__()
        require(num_heads >= 1, "num_heads", num_heads, "at least 1")
        require(num_components >= 1, "num_components", num_components, "at least 1")
        require(route_dim >= 1, "route_dim", route_dim, "at least 1")
        positive = isinstance(temperature, int | float) and temperature > 0
        require(temperature is None or positive, "temperature", temperature, "positive, or None for sqrt(R)")
        for name, flag in (
            ("equal_norms", equal_norms),
            ("means_from_data", means_from_data),
            ("learn_temperature", learn_temperature),
            ("normalize_inputs", normalize_inputs),
        ):
            require(isinstance(flag, bool), name, flag, "true or false")
        require(learning_rate_scale > 0, "learning_rate_scale", learning_rate_scale, "positive")
        require(mean_spread >= 0, "mean_spread", mean_spread, "at least 0")
        require(variance_floor >= 1e-6, "variance_floor", variance_floor, "at least 1e-6")
        require(
            initial_variance > variance_floor, "initial_variance", initial_variance, f"above the floor {variance_floor}"
        )
        self.initial_temperature = math.sqrt(route_dim) if temperature is None else float(temperature)
        self.normalize_inputs = normalize_inputs
        self.variance_floor = variance_floor
        self.mean_spread = mean_spread
        self.equal_norms = equal_norms
        self.means_from_data = means_from_data
        self.initial_variance = initial_variance
        self.means = nn.Parameter(torch.empty(num_heads, num_components, route_dim))
        self.raw_variances = nn.Parameter(torch.empty(num_heads, num_components, route_dim))
        self.prior_logits = nn.Parameter(torch.empty(num_heads, num_components))
        self.log_temperature = nn.Parameter(torch.empty(num_heads, 1, 1)) if learn_temperature else None
        self.reset_parameters()
        for parameter in self.parameters():
            parameter.learning_rate_scale = learning_rate_scale  # type: ignore[attr-defined]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new means; set variances to ``initial_variance`` and priors to 1/K."""
        self._set_means(torch.empty_like(self.means).normal_(std=self.mean_spread))
        above_floor = self.initial_variance - self.variance_floor
        self.raw_variances.fill_(above_floor + math.log(-math.expm1(-above_floor)))  # the inverse of softplus
        self.prior_logits.zero_()
        if self.log_temperature is not None:
            self.log_temperature.fill_(math.log(self.initial_temperature))

    @torch.no_grad()
    def start_means_from(self, x: Tensor) -> None:
        """Put the means of each head on K different tokens drawn from ``x`` (T, H, R); scaled to one norm if
        ``equal_norms``.

        Raises:
            ValueError: for fewer tokens than components.
        """
        heads, components, _ = self.means.shape
        require(len(x) >= components, "tokens", len(x), f"at least num_components={components} to start means from")
        x = self.prepare(x)
        drawn = [x[torch.randperm(len(x), device=x.device)[:components], head] for head in range(heads)]
        self._set_means(torch.stack(drawn).to(self.means.dtype))

    def _set_means(self, means: Tensor) -> None:
        route_dim = means.shape[-1]
        if self.equal_norms and route_dim > 1:  # with R = 1 only two different means would be left
            means = means * (
                self.mean_spread * math.sqrt(route_dim) / means.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            )
        self.means.copy_(means)

    def prepare(self, x: Tensor) -> Tensor:
        """Queries or keys (..., R) as the densities see them: scaled to a root mean square of 1 if so configured."""
        if not self.normalize_inputs:
            return x
        return F.rms_norm(x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], eps=1e-6)

    @property
    def temperature(self) -> float | Tensor:
        """tau: a number, or (H, 1, 1) if learned."""
        return self.initial_temperature if self.log_temperature is None else self.log_temperature.exp()

    @property
    def variances(self) -> Tensor:
        """sigma^2 = softplus(omega) + eps_sigma, (H, K, R), float32 or better under autocast too."""
        return F.softplus(self.raw_variances) + self.variance_floor

    @property
    def log_priors(self) -> Tensor:
        """log pi = log softmax(alpha), (H, K)."""
        return self.prior_logits.log_softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Responsibilities gamma (B, H, N, K) of ``x`` (B, H, N, R): float32, or float64 if ``x`` is."""
        return routing.responsibilities(self.prepare(x), self.means, self.variances, self.log_priors, self.temperature)
