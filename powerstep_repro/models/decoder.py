"""A causal language model of ``transformers`` behind the trainer's interface."""

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.kernels import linear_cross_entropy
from nanogpt.model import Output
from powerstep_repro.models.moe import experts_forward, load_balancing_loss


def shared_settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the config classes of all families take."""
    return {
        "vocab_size": model["vocab_size"],
        "hidden_size": model["hidden"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "tie_word_embeddings": model["tied"],
        "rope_parameters": {"rope_type": "default", "rope_theta": float(model["rope_theta"])},
        "max_position_embeddings": model["context"],
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "use_cache": False,
        "attn_implementation": "sdpa",
        # No token is special to the model: padding would freeze a row of the embedding.
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


class Decoder(nn.Module):
    """Token, loss and cost interface around ``<Family>ForCausalLM``.

    The decoder layers are called here, one after the other, instead of through the model's own
    ``forward``: that one builds a dense attention mask under ``torch.compile``, which shuts out
    the fast causal kernels.

    Args:
        causal_lm: The model, with fresh weights.
        attention_width: Widths of a query and of a value head, added; for the FLOPs.
        experts_per_token: Routed experts per token; 0 in a dense model.
        aux_loss_coef: Weight of the load-balancing loss in the training objective.
    """

    def __init__(
        self,
        causal_lm: nn.Module,
        *,
        attention_width: int,
        experts_per_token: int = 0,
        aux_loss_coef: float = 0.0,
    ) -> None:
        super().__init__()
        self.lm = causal_lm
        self.vocab_size = causal_lm.config.vocab_size
        self.attention_width = attention_width
        self.experts_per_token = experts_per_token
        self.aux_loss_coef = aux_loss_coef
        self._router_logits: list[Tensor] | None = None
        if causal_lm.config.tie_word_embeddings:
            # Done already, except by transformers 5.0 on the meta device.
            causal_lm.lm_head.weight = causal_lm.model.embed_tokens.weight
        self._frequencies = causal_lm.model.rotary_emb.inv_freq.clone()
        for layer in causal_lm.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp.register_forward_pre_hook(self._observe_router)
                layer.mlp.experts.forward = MethodType(experts_forward, layer.mlp.experts)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, passes: int = 1) -> Output:
        """Run the model.

        Args:
            tokens: (B, T), int64.
            targets: (B, T), int64, the token that follows each; None for logits alone.
            passes: What the losses are divided by, where so many passes make up a step.

        Returns:
            With targets ``loss``, the mean cross-entropy in nats, and in a mixture of experts
            ``aux``, the weighted load-balancing loss; without targets ``logits``, (B, T, V).
        """
        self._router_logits = []
        body = self.lm.model
        hidden = body.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        rotary = body.rotary_emb(hidden, positions)
        for layer in body.layers:
            hidden = layer(
                hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary
            )
        hidden = body.norm(hidden)
        router_logits, self._router_logits = self._router_logits, None
        if targets is None:
            return Output(loss=None, logits=self.lm.lm_head(hidden))
        loss = linear_cross_entropy(hidden, self.lm.lm_head.weight, targets, passes)
        aux = None
        if router_logits and self.aux_loss_coef:
            balance = load_balancing_loss(router_logits, self.experts_per_token)
            aux = self.aux_loss_coef / passes * balance
        return Output(loss=loss, logits=None, aux=aux)

    def _observe_router(self, block: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Note the router's logits, (tokens, experts), as a layer of experts is entered.

        Computed from the router's weight rather than read from its output, which is logits in one
        release of transformers and probabilities in another, and in some is never called.
        """
        if self._router_logits is not None:
            self._router_logits.append(F.linear(args[0].flatten(0, -2), block.gate.weight))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Decoder":
        """Move or cast the module, but keep the rotary frequencies in fp32.

        In bf16 a frequency is off by up to 0.4 %, an angle at position 2048 by several radians.
        """
        super()._apply(fn, recurse)
        rotary = self.lm.model.rotary_emb
        rotary.inv_freq = self._frequencies.to(rotary.inv_freq.device)
        return self

    def n_params(self) -> int:
        """Number of parameters, a tied embedding counted once."""
        return sum(p.numel() for p in self.parameters())

    def n_active_params(self) -> int:
        """Number of parameters that one token passes through."""
        idle = 0
        for layer in self.lm.model.layers:
            if hasattr(layer.mlp, "experts"):
                routed = sum(p.numel() for p in layer.mlp.experts.parameters())
                n_experts = layer.mlp.experts.gate_up_proj.shape[0]
                idle += routed - routed * self.experts_per_token // n_experts
        return self.n_params() - idle

    def flops_per_token(self, context: int) -> float:
        """FLOPs of a forward and a backward pass per token of a sequence of ``context`` tokens.

        Six per active parameter, without an input embedding that is only looked up, and the two
        products of attention, not halved for the causal mask (as nanoGPT counts).
        """
        config = self.lm.config
        params = self.n_active_params()
        if not config.tie_word_embeddings:
            params -= config.vocab_size * config.hidden_size
        layers_heads = config.num_hidden_layers * config.num_attention_heads
        return 6.0 * params + 6.0 * layers_heads * self.attention_width * context
