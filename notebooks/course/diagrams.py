"""The diagrams of the pages, made by code: `python notebooks/course/diagrams.py` writes notebooks/figures/.

Text stays text, the background is transparent, and every ink is legible on white and on dark: boxes
bring their own light fill, and what stands outside of them is a middle grey. Colours mean what they
mean in plots.py.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from course.plots import COLOURS

FIGURES = Path(__file__).resolve().parents[1] / "figures"
INK, GREY, PAPER = "#1F2328", "#767D86", "#FFFFFF"
SANS = "Helvetica, Arial, sans-serif"
MONO = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Measured on a wide font, so that a text never leaves its box.
WIDTH = {"sans": 0.56, "mono": 0.61}


@dataclass(frozen=True)
class Box:
    """A box with its place; arrows start and end in the middle of its sides."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height

    @property
    def left(self) -> tuple[float, float]:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        return self.x + self.width, self.y + self.height / 2


@dataclass
class Picture:
    """Boxes, arrows and words; `svg` gives the file's text."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        lines: Sequence[str],
        meaning: str = "reference",
        *,
        height: float = 0,
        frozen: bool = False,
    ) -> Box:
        """A filled box. A first line is bold; a line that begins with ` is code, with ~ it is small.

        A frozen thing has a dashed edge.
        """
        sizes = [13 if line[:1] in "`~" else 15 for line in lines]
        inner = sum(size * 1.4 for size in sizes)
        height = height or inner + 14
        dash = ' stroke-dasharray="6 4"' if frozen else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" '
            f'fill="{tinted(COLOURS[meaning])}" stroke="{COLOURS[meaning]}" stroke-width="2"{dash}/>'
        )
        below = y + (height - inner) / 2
        for index, (line, size) in enumerate(zip(lines, sizes, strict=True)):
            mono = line.startswith("`")
            check_width(line.lstrip("`~"), size, mono, width)
            below += size * 1.4
            self.text(
                x + width / 2, below - size * 0.4, line.lstrip("`~"),
                size=size, mono=mono, bold=index == 0, ink=INK,
            )  # fmt: skip
        return Box(x, y, width, height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        mono: bool = False,
        bold: bool = False,
        ink: str = GREY,
        anchor: str = "middle",
    ) -> None:
        """Words on the background, or in a box."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family="{MONO if mono else SANS}" font-size="{size:g}"'
            f'{weight} fill="{ink}" text-anchor="{anchor}">{html.escape(words)}</text>'
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        label: str = "",
        *,
        at: float = 0.5,
        side: str = "middle",
        dashed: bool = False,
        bend: float | None = None,
    ) -> None:
        """A straight arrow, or with `bend` one of three pieces whose middle piece lies at that y.

        `side` says where the label stands: in the middle of the line, or to the left or right of it.
        """
        (x1, y1), (x2, y2) = start, end
        path = f"M{x1:g} {y1:g} L{x2:g} {y2:g}"
        if bend is not None:
            path = f"M{x1:g} {y1:g} L{x1:g} {bend:g} L{x2:g} {bend:g} L{x2:g} {y2:g}"
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.8"{dash} '
            'marker-end="url(#head)"/>'
        )
        if label:
            x, y = x1 + (x2 - x1) * at, y1 + (y2 - y1) * at + 4
            if bend is not None:
                x, y = (x1 + x2) / 2, bend + 4
            self.label(x, y, label, side)

    def label(self, x: float, y: float, words: str, side: str = "middle") -> None:
        """Words of an arrow: on a light chip over the line, or beside it."""
        if side != "middle":
            shift, anchor = (8, "start") if side == "right" else (-8, "end")
            self.text(x + shift, y, words, anchor=anchor)
            return
        width = len(words) * 13 * WIDTH["sans"] + 10
        self.parts.append(
            f'<rect x="{x - width / 2:g}" y="{y - 14:g}" width="{width:g}" height="20" rx="4" '
            f'fill="{PAPER}" stroke="{GREY}" stroke-width="0.8"/>'
        )
        self.text(x, y, words, ink=INK)

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" style="max-width:100%;height:auto" role="img">\n'
            f"<title>{html.escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{GREY}"/>'
            "</marker></defs>\n"
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def tinted(colour: str) -> str:
    """A light fill of the same hue."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{255 - (255 - part) // 6:02x}" for part in parts)


def check_width(line: str, size: float, mono: bool, width: float) -> None:
    """Refuse a text that would leave its box."""
    needed = len(line) * size * WIDTH["mono" if mono else "sans"]
    if needed > width:
        raise ValueError(f"{line!r} needs {needed:.0f} pixels, its box has {width:.0f}")


# --- the pictures ---------------------------------------------------------------------------------


def pipeline() -> Picture:
    """Folders, commands, and what one stage leaves for the next."""
    p = Picture(720, 655, "The pipeline: folders, commands, and what each stage hands on")
    world = p.box(
        170, 10, 380, ["data/: worlds and files", "~prompts, answers, gold reward"], "gold"
    )
    base = p.box(
        160, 110, 400, ["gpt/: a GPT-2, pre-trained", "`python -m gpt.pretraining",
                        "`runs/pretraining-reviews-tiny"], "policy",
    )  # fmt: skip
    judge = p.box(
        10, 260, 380, ["reward_model/: what do people prefer?", "`python -m reward_model."
                       "reward_model_training", "`runs/reward_model-reviews-tiny"], "proxy",
    )  # fmt: skip
    tuned = p.box(
        450, 260, 260, ["gpt/: imitate the preferred", "`python -m gpt.finetuning",
                        "`runs/finetuning-reviews-tiny"], "reference",
    )  # fmt: skip
    engine = p.box(
        140, 410, 440, ["rl/: every engine starts from these two", "`python -m rl.grpo_engine",
                        "~or ppo, rloo, reinforce_pp, dpo, pg_grpo, ...", "`runs/grpo-reviews-tiny"],
        "policy",
    )  # fmt: skip
    look = p.box(
        90, 570, 540, ["look at it: curves, tokens, a diagnosis, a conversation",
                       "`python -m report, report.doctor or rl.talk"], "reference",
    )  # fmt: skip
    p.arrow(world.bottom, base.top, "text of the world")
    p.arrow((260, base.y + base.height), (260, judge.y), "base model writes pairs")
    p.arrow(judge.right, tuned.left)
    p.text(580, 250, "its pairs, without RL")
    p.arrow((260, judge.y + judge.height), (260, engine.y), "reward")
    p.arrow((420, base.y + base.height), (420, engine.y), "policy", at=0.8)
    p.arrow(engine.bottom, look.top, "better policy")
    return p


def gpt_block() -> Picture:
    """The residual stream of GPT-2 with the shape of every tensor."""
    p = Picture(720, 800, "One block of GPT-2 with shapes")
    tokens = p.box(250, 10, 220, ["tokens", "`(N, S)"], "reference")
    embed = p.box(190, 92, 340, ["wte[tokens] + wpe[positions]", "`(N, S, D)"], "policy")
    p.arrow(tokens.bottom, embed.top)
    p.parts.append(
        f'<rect x="60" y="190" width="640" height="440" rx="12" fill="none" stroke="{GREY}" '
        'stroke-width="1.5" stroke-dasharray="7 5"/>'
    )
    p.text(240, 610, "this block is repeated n_layer times", anchor="start", bold=True)
    stream = 150
    p.arrow((stream, 165), (stream, 660))
    p.parts.append(
        f'<path d="M{stream} 165 L360 165 L360 146" fill="none" stroke="{GREY}" stroke-width="1.8"/>'
    )
    p.text(stream - 10, 425, "x", size=16, anchor="end", bold=True)
    p.text(stream - 10, 445, "(N, S, D)", anchor="end", mono=True, size=11)
    ln1 = p.box(240, 222, 120, ["ln_1"], "reference")
    qkv = p.box(400, 215, 280, ["c_attn: q, k, v", "`3 x (N, H, S, D/H)"], "policy")
    att = p.box(400, 285, 280, ["softmax(q k' / sqrt(D/H)) v", "`weights (N, H, S, S)"], "exact")
    proj = p.box(400, 355, 280, ["heads together, c_proj", "`(N, S, D)"], "policy")
    p.arrow((stream, ln1.left[1]), ln1.left)
    p.arrow(ln1.right, (qkv.x, ln1.left[1]))
    p.arrow(qkv.bottom, att.top)
    p.arrow(att.bottom, proj.top)
    plus(p, stream, proj.left[1])
    p.arrow(proj.left, (stream + 15, proj.left[1]), "+ what other tokens say", at=0.55)
    ln2 = p.box(240, 432, 120, ["ln_2"], "reference")
    fc = p.box(400, 425, 280, ["c_fc, then GELU", "`(N, S, 4D)"], "policy")
    down = p.box(400, 495, 280, ["c_proj", "`(N, S, D)"], "policy")
    p.arrow((stream, ln2.left[1]), ln2.left)
    p.arrow(ln2.right, (fc.x, ln2.left[1]))
    p.arrow(fc.bottom, down.top)
    plus(p, stream, down.left[1])
    p.arrow(down.left, (stream + 15, down.left[1]), "+ what the token thinks", at=0.55)
    p.text(240, 570, "attention moves information between tokens,", anchor="start")
    p.text(240, 588, "the MLP works on each token alone", anchor="start")
    head = p.box(70, 662, 270, ["ln_f, then times wte'", "`logits (N, S, V)"], "policy")
    logp = p.box(420, 662, 280, ["log-softmax, gather the next", "`log_probs (N, T)"], "exact")
    p.arrow(head.right, logp.left)
    p.text(360, 760, "N rows, S columns, D embedding, H heads, V vocabulary,")
    p.text(360, 780, "T columns of the response alone")
    return p


def plus(p: Picture, x: float, y: float) -> None:
    """Where a branch is added to the residual stream."""
    p.parts.append(
        f'<circle cx="{x:g}" cy="{y:g}" r="13" fill="{PAPER}" stroke="{GREY}" stroke-width="1.8"/>'
    )
    p.text(x, y + 6, "+", size=18, bold=True, ink=INK)


def four_models() -> Picture:
    """PPO: policy, reference, reward model and critic, with what flows between them."""
    p = Picture(720, 665, "PPO's four models and what flows between them")
    prompts = p.box(270, 10, 180, ["prompts", "`N"], "gold")
    policy = p.box(230, 90, 260, ["policy", "~trained", "`tokens, log_probs (N, T)"], "policy")
    p.arrow(prompts.bottom, policy.top)
    reference = p.box(
        10, 235, 210, ["reference", "~frozen", "`ref_log_probs (N, T)"], "reference", frozen=True
    )
    judge = p.box(255, 235, 210, ["reward model", "~frozen", "`rewards (N,)"], "proxy", frozen=True)
    critic = p.box(500, 235, 210, ["critic", "~trained", "`values (N, T)"], "critic")
    for model, side in ((reference, 290), (judge, 360), (critic, 430)):
        p.arrow((side, policy.y + policy.height), model.top, "tokens" if model is judge else "")
    token_rewards = p.box(
        90, 375, 340, ["token rewards", "`-beta (log_probs - ref_log_probs)",
                       "`+ reward at the last token (N, T)"], "proxy",
    )  # fmt: skip
    p.arrow(reference.bottom, (115, token_rewards.y))
    p.arrow(judge.bottom, (360, token_rewards.y))
    gae = p.box(250, 490, 360, ["GAE", "`advantages, returns (N, T)"], "exact")
    p.arrow((330, token_rewards.y + token_rewards.height), (330, gae.y))
    p.arrow((580, critic.y + critic.height), (580, gae.y), "values")
    clip = p.box(110, 600, 290, ["clipped surrogate", "~updates the policy"], "policy")
    value = p.box(440, 600, 240, ["value loss", "~updates the critic"], "critic")
    p.arrow((320, gae.y + gae.height), (320, clip.y), "advantages")
    p.arrow((560, gae.y + gae.height), (560, value.y), "returns")
    return p


def three_models() -> Picture:
    """GRPO: no critic, the group is the baseline; the KL stands in the loss."""
    p = Picture(720, 550, "GRPO's three models and what flows between them")
    prompts = p.box(250, 10, 220, ["prompts", "`N / G, G answers each"], "gold")
    policy = p.box(230, 90, 260, ["policy", "~trained", "`tokens, log_probs (N, T)"], "policy")
    p.arrow(prompts.bottom, policy.top)
    reference = p.box(
        30, 235, 230, ["reference", "~frozen", "`ref_log_probs (N, T)"], "reference", frozen=True
    )
    judge = p.box(
        420, 235, 250, ["reward model or rule", "~frozen", "`rewards (N,)"], "proxy", frozen=True
    )
    p.arrow((300, policy.y + policy.height), reference.top, "tokens")
    p.arrow((420, policy.y + policy.height), judge.top, "tokens")
    kl = p.box(30, 370, 230, ["KL, k3 per token", "`(N, T)"], "k3")
    group = p.box(
        370, 370, 340, ["compare within the group", "`(reward - mean) / std", "`advantages (N, 1)"],
        "exact",
    )  # fmt: skip
    p.arrow(reference.bottom, kl.top)
    p.arrow(judge.bottom, (545, group.y))
    loss = p.box(
        170,
        485,
        380,
        ["clipped surrogate + beta KL", "~mean over tokens, then answers; updates the policy"],
        "policy",
    )
    p.arrow((145, kl.y + kl.height), (230, loss.y))
    p.arrow((540, group.y + group.height), (490, loss.y))
    return p


def algorithm_map() -> Picture:
    """From REINFORCE to every engine: which line changes at each step."""
    p = Picture(720, 800, "A map of the algorithms: which line changes from one to the next")
    p.text(360, 22, "What changes from one to the next. Code: rl/NAME_engine.py", bold=True)
    reinforce = p.box(250, 36, 220, ["REINFORCE", "`-A log pi, A = R"], "exact")
    rloo = p.box(10, 140, 200, ["RLOO", "~A = R - mean of the others", "`rloo"], "policy")
    rpp = p.box(
        230, 140, 220, ["REINFORCE++", "~A whitened over the batch", "`reinforce_pp"], "policy"
    )
    ppo = p.box(470, 140, 240, ["PPO", "~A from a critic (GAE), clip", "`ppo"], "critic")
    for child in (rloo, ppo):
        p.arrow((360, reinforce.y + reinforce.height), child.top, bend=113)
    p.arrow(reinforce.bottom, (360, rpp.y))
    grpo = p.box(
        220, 275, 280, ["GRPO", "~A = (R - group mean) / group std", "~k3 in the loss, no critic",
                        "`grpo"], "policy",
    )  # fmt: skip
    p.arrow((590, ppo.y + ppo.height), (500, 320), "critic to group mean", at=0.35)
    p.arrow((110, rloo.y + rloo.height), (220, 320), "divide by std, clip", at=0.35)
    p.parts.append(
        f'<rect x="4" y="412" width="712" height="224" rx="12" fill="none" stroke="{GREY}" '
        'stroke-width="1.5" stroke-dasharray="7 5"/>'
    )
    p.arrow(grpo.bottom, (360, 412))
    p.text(360, 432, "GRPO with a line or two changed", bold=True)
    p.box(
        14, 444, 335, ["grpo_variants", "~DAPO: clip-higher, token mean, filter",
                       "~Dr. GRPO: no std, constant length", "~GSPO: one ratio per response",
                       "~CISPO, SAPO: weight or gate for the clip"], "policy",
    )  # fmt: skip
    p.box(365, 444, 341, ["grpo_process", "~A per token, from rewards of steps"], "policy")
    p.box(365, 508, 341, ["grpo_iterative", "~reward model trained again in rounds"], "policy")
    p.box(14, 572, 335, ["grpo_single_model", "~reference = the policy that sampled"], "policy")
    pg = p.box(365, 572, 341, ["pg_grpo", "~plus DPO's loss on pairs of the group"], "policy")
    dpo = p.box(365, 668, 341, ["dpo", "~no sampling: recorded pairs, no reward model"], "proxy")
    p.arrow(dpo.top, pg.bottom, "its loss")
    p.box(
        14, 668, 335, ["kd_grpo, kd_ppo", "~GRPO, PPO; reward = log p / q, p a teacher"], "teacher"
    )
    p.box(14, 736, 335, ["minillm", "~the reverse KL to a teacher is the loss"], "teacher")
    p.text(536, 752, "blue: no critic; pink: a critic;")
    p.text(536, 772, "orange: pairs; light blue: a teacher")
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "pipeline": pipeline,
    "gpt_block": gpt_block,
    "four_models": four_models,
    "three_models": three_models,
    "algorithm_map": algorithm_map,
}


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FIGURES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
