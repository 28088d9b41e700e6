"""DeepSeek-V4's sizes: one frozen record a preset.

Source: `transformers` `DeepseekV4Config` and the published FLASH and PRO configurations. TINY decodes in
transformers and is the configuration of the oracle tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from decode_metadata import CacheGeometry


@dataclass(frozen=True)
class RopeProfile:
    """One RoPE table: base `theta`; YaRN where `factor` is not 1 (interpolating beyond `original_positions`)."""

    theta: float
    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_positions: int = 65536


@dataclass(frozen=True)
class DeepseekV4Config:
    """Sizes of one model. Lengths are in elements, `page_tokens` in source tokens. Raises ValueError by field."""

    name: str
    hidden: int
    heads: int
    head_dim: int
    q_lora: int
    o_groups: int
    o_lora: int
    vocab: int
    layers: int
    experts: int
    experts_per_token: int
    moe_intermediate: int
    routed_scale: float
    index_heads: int
    index_head_dim: int
    index_topk: int
    rope_dim: int = 64
    window: int = 128
    page_tokens: int = 128
    hc_lanes: int = 4
    hc_sinkhorn_iterations: int = 20
    swiglu_limit: float = 10.0
    rms_norm_eps: float = 1e-6
    hc_eps: float = 1e-6
    max_position: int = 1_048_576
    swa_rope: RopeProfile = RopeProfile(theta=1e4)
    compressed_rope: RopeProfile = RopeProfile(theta=160_000.0, factor=16.0)

    def __post_init__(self) -> None:
        if self.rope_dim % 2 or self.rope_dim < 32:
            raise ValueError(f"rope_dim must be even and at least 32, got {self.rope_dim}")
        for name in ("head_dim", "index_head_dim"):
            if getattr(self, name) <= self.rope_dim:
                raise ValueError(f"{name} must be above rope_dim {self.rope_dim}, got {getattr(self, name)}")
        if self.heads % 16:
            raise ValueError(f"heads must be a multiple of 16, got {self.heads}")
        if self.heads % self.o_groups:
            raise ValueError(f"heads {self.heads} must be a multiple of o_groups, got {self.o_groups}")
        if self.index_head_dim & (self.index_head_dim - 1):
            raise ValueError(f"index_head_dim must be a power of two, got {self.index_head_dim}")
        for name in ("hidden", "q_lora", "head_dim", "o_lora", "moe_intermediate", "group_input"):
            if getattr(self, name) % 64:
                raise ValueError(f"{name} must be a multiple of 64, got {getattr(self, name)}")

    @property
    def group_input(self) -> int:
        """Elements that one output-projection group takes: heads / o_groups heads of head_dim."""
        return self.heads // self.o_groups * self.head_dim

    @property
    def cache_geometry(self) -> CacheGeometry:
        """Windows, pages and compression ratios, as decode metadata take them."""
        return CacheGeometry(window=self.window, page_tokens=self.page_tokens)

    @property
    def softmax_scale(self) -> float:
        return float(self.head_dim**-0.5)


FLASH = DeepseekV4Config(
    name="flash", hidden=4096, heads=64, head_dim=512, q_lora=1024, o_groups=8, o_lora=1024, vocab=129_280, layers=43,
    experts=256, experts_per_token=6, moe_intermediate=2048, routed_scale=1.5, index_heads=64, index_head_dim=128,
    index_topk=512,
)  # fmt: skip
PRO = DeepseekV4Config(
    name="pro", hidden=7168, heads=128, head_dim=512, q_lora=1536, o_groups=16, o_lora=1024, vocab=129_280, layers=61,
    experts=384, experts_per_token=6, moe_intermediate=3072, routed_scale=2.5, index_heads=64, index_head_dim=128,
    index_topk=1024,
)  # fmt: skip
TINY = DeepseekV4Config(
    name="tiny", hidden=256, heads=16, head_dim=128, q_lora=128, o_groups=2, o_lora=128, vocab=1024, layers=5,
    experts=16, experts_per_token=6, moe_intermediate=128, routed_scale=1.5, index_heads=32, index_head_dim=128,
    index_topk=64, hc_eps=1e-5,
)  # fmt: skip

MODELS = {config.name: config for config in (FLASH, PRO, TINY)}
