"use strict";
// One token: what the clip, the dual clip and DPPO make of its ratio and its advantage.
(() => {
  const X = globalThis.explorables;
  const TRUNCATED = 20; // DPPO's weight goes no higher

  /** Loss and push (minus the gradient by log pi) of one token. */
  function at(s, ratio) {
    const A = s.advantage;
    const clipped = X.clamp(ratio, 1 - s.low, 1 + s.high);
    const ppo = -Math.min(ratio * A, clipped * A);
    const acted = clipped * A < ratio * A;
    const bounded = A < 0 && ppo > -s.dual * A;
    const moved = (ratio - 1) * s.old; // pi - pi_old: what DPPO's binary total variation looks at
    const left = A > 0 ? moved > s.delta : A < 0 ? moved < -s.delta : false;
    return {
      loss: { ppo, dual: bounded ? -s.dual * A : ppo },
      push: { ppo: acted ? 0 : ratio * A, dual: acted || bounded ? 0 : ratio * A, dppo: left ? 0 : Math.min(ratio, TRUNCATED) * A },
      moved, left,
    };
  }

  function verdict(s, n) {
    if (s.advantage === 0) return "neither good nor bad: no push at all";
    const good = s.advantage > 0;
    if (n.push.ppo === 0) return good ? "good, and likelier already: enough, says the clip" : "bad, and rarer already: enough, says the clip";
    if (!good && s.ratio > 1 + s.high) return "bad, yet it became likelier: pulled down with full force" + (n.push.dual === 0 ? ", except under the dual clip, which lets it go" : "");
    if (good && s.ratio < 1 - s.low) return "good, yet it became rarer: pushed back up";
    return "inside the clip range: an ordinary policy gradient";
  }

  X.define("clip", {
    question: "When has a token been pushed far enough?",
    start: { ratio: 1.5, advantage: 1, low: 0.2, high: 0.2, dual: 3, old: 0.05, delta: 0.2 },
    controls: [
      { key: "ratio", label: "ratio \u03c0/\u03c0 old", min: 0.05, max: 4, step: 0.05 },
      { key: "advantage", label: "advantage A", min: -2, max: 2, step: 0.1, digits: 1 },
      { key: "low", label: "\u03b5 below 1", min: 0, max: 0.9, step: 0.02 },
      { key: "high", label: "\u03b5 above 1", min: 0, max: 1, step: 0.02 },
      { key: "dual", label: "dual clip c", min: 1.5, max: 4, step: 0.1, digits: 1 },
      { key: "old", label: "\u03c0 old of the token", min: 0.01, max: 0.9, step: 0.01 },
      { key: "delta", label: "DPPO's \u03b4", min: 0.02, max: 0.5, step: 0.01 },
    ],
    tries: [
      "Set A to \u22121 and drag the ratio up to 3.5. The clip never stops this push; the dual clip does, beyond c.",
      "With A = +1 make the token rare (\u03c0 old 0.01). The clip stops it at a ratio of 1.2, when its probability has moved by 0.002. DPPO does not.",
      "Now make it frequent (\u03c0 old 0.8) and \u03b4 0.1. DPPO stops at a ratio of 1.12, before the clip: a small ratio is a large move here.",
    ],
    compute(s) {
      const n = at(s, s.ratio);
      return { ...n, verdict: verdict(s, n) };
    },
    draw(view, s, n, change) {
      const grid = [...X.linspace(0.02, 4, 200), 1 - s.low - 1e-9, 1 - s.low + 1e-9, 1 + s.high - 1e-9, 1 + s.high + 1e-9,
        1 + s.delta / s.old - 1e-9, 1 + s.delta / s.old + 1e-9, 1 - s.delta / s.old - 1e-9, 1 - s.delta / s.old + 1e-9, s.dual - 1e-9, s.dual + 1e-9]
        .filter((r) => r > 0 && r <= 4).sort((a, b) => a - b);
      const possible = grid.filter((r) => r * s.old <= 1); // no probability is above 1
      const span = 4 * Math.max(Math.abs(s.advantage), 0.25);
      const ends = s.advantage > 0 ? [-span * 0.55, 0.4] : [-0.4, span];
      const left = X.chart(view, { title: "loss of the token: drag the point", x: [0, 4], y: ends, xlabel: "ratio" });
      left.band(1 - s.low, 1 + s.high, "reference");
      left.line(grid.map((r) => [r, at(s, r).loss.dual]), "bad", { dash: "6 4", width: 3 });
      left.line(grid.map((r) => [r, at(s, r).loss.ppo]), "policy");
      left.rule(s.ratio, "quiet");
      left.handle({ at: s.ratio, up: n.loss.ppo, value: s.ratio, min: 0.05, max: 4, step: 0.05, name: "ratio", along: true, colour: "policy", set: (ratio) => change({ ratio }) });
      const reach = s.advantage > 0 ? [-0.3, span] : [-span, 0.3];
      const right = X.chart(view, { title: "push on log \u03c0 (minus the gradient)", x: [0, 4], y: reach, xlabel: "ratio" });
      right.band(1 - s.low, 1 + s.high, "reference");
      right.line(possible.map((r) => [r, at(s, r).push.dppo]), "teal", { width: 5 });
      right.line(grid.map((r) => [r, at(s, r).push.dual]), "bad", { dash: "6 4", width: 3 });
      right.line(grid.map((r) => [r, at(s, r).push.ppo]), "policy");
      right.rule(s.ratio, "quiet");
      for (const [name, colour] of [["dppo", "teal"], ["dual", "bad"], ["ppo", "policy"]]) right.dot(s.ratio, n.push[name], colour, { r: 5 });
      X.legend(view, [["PPO's clip", "policy", "line"], ["with the dual clip", "bad", "dash"], ["DPPO, binary TV", "teal", "line"], ["clip range", "reference"]]);
    },
    formula(s, n) {
      const clipped = X.clamp(s.ratio, 1 - s.low, 1 + s.high);
      return `loss = \u2212min(ratio A, clip(ratio) A) = \u2212min(${X.fixed(s.ratio * s.advantage)}, ${X.fixed(clipped * s.advantage)}) = <b>${X.fixed(n.loss.ppo)}</b>; ` +
        `push: PPO <b>${X.signed(n.push.ppo)}</b>, dual clip <b>${X.signed(n.push.dual)}</b>, DPPO <b>${X.signed(n.push.dppo)}</b><br>` +
        `PPO: ${n.verdict}. DPPO: \u03c0 \u2212 \u03c0 old = ${X.fixed(s.ratio - 1)} \u00d7 ${X.fixed(s.old)} = ${X.signed(n.moved, 3)}, ` +
        (s.ratio * s.old > 1 ? "but no probability is above 1." : n.left ? `beyond \u03b4 = ${X.fixed(s.delta)}: left out.` : `within \u03b4 = ${X.fixed(s.delta)}: kept.`);
    },
  });
})();
