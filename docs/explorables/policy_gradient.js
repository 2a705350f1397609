"use strict";
// Three words, their rewards and a baseline: the exact gradient, and what a few sampled words make of it.
(() => {
  const X = globalThis.explorables;
  const WORDS = ["great", "fine", "awful"];
  const REPEATS = 60; // estimates that are drawn
  const rewards = (s) => [s.great, s.fine, s.awful];

  /** (R - b) grad log pi of one word, by the three logits. */
  const push = (p, r, b, word) => p.map((q, k) => (r[word] - b) * ((k === word ? 1 : 0) - q));

  X.define("policy_gradient", {
    question: "One sampled word, one number: how good a gradient is that?",
    start: { p: [0.2, 0.3, 0.5], great: 3, fine: 2, awful: 1, baseline: 0, samples: 1, seed: 1 },
    controls: [
      ...WORDS.map((word) => ({ key: word, label: `reward of ${word}`, min: -5, max: 15, step: 0.5, digits: 1 })),
      { key: "baseline", label: "baseline b", min: -5, max: 15, step: 0.1, digits: 1 },
      { key: "samples", label: "words a step", min: 1, max: 32, step: 1, digits: 0 },
      { label: "b = E[R]", press: (s) => ({ baseline: Number(X.dot(s.p, rewards(s)).toFixed(6)) }) },
      { label: "+10 to all rewards", press: (s) => ({ great: X.clamp(s.great + 10, -5, 15), fine: X.clamp(s.fine + 10, -5, 15), awful: X.clamp(s.awful + 10, -5, 15) }) },
      { label: "Draw again", press: (s) => ({ seed: s.seed + 1 }) },
    ],
    tries: [
      "Press <b>+10 to all rewards</b>: the gradient stays, and the cloud of estimates explodes. Then press <b>b = E[R]</b>.",
      "Drag <i>great</i> down to 0.01. It is the best word, yet it hardly gets a gradient, because it is hardly ever said.",
      "Draw 16 words a step instead of one: the cloud shrinks by a factor of four.",
    ],
    compute(s) {
      const r = rewards(s);
      const J = X.dot(s.p, r);
      const gradient = s.p.map((q, k) => q * (r[k] - J));
      const estimates = WORDS.map((_, word) => push(s.p, r, s.baseline, word));
      const mean = WORDS.map((_, k) => X.dot(s.p, estimates.map((e) => e[k])));
      const variance = X.dot(s.p, estimates.map((e) => X.sum(e.map((v, k) => (v - mean[k]) ** 2))));
      const random = X.randomFrom(s.seed);
      const draws = X.range(REPEATS).map(() => X.range(s.samples).map(() => X.drawn(s.p, random())));
      const cloud = draws.map((words) => WORDS.map((_, k) => X.mean(words.map((word) => estimates[word][k]))));
      return { J, gradient, mean, noise: Math.sqrt(variance / s.samples), length: Math.sqrt(X.dot(gradient, gradient)), draws, cloud };
    },
    draw(view, s, n, change) {
      const names = WORDS.map((word, i) => [i, word]);
      const left = X.chart(view, { title: "the policy: drag the probabilities", x: [-0.6, 2.6], y: [0, 1], xticks: names });
      WORDS.forEach((word, i) => {
        left.bar(i, 0.6, s.p[i], "policy", { opacity: 0.75 });
        left.text(left.px(i), Math.min(left.py(s.p[i]) + 26, left.box.bottom - 4), X.fixed(s.p[i]), { size: 12 });
        left.handle({
          at: i, up: s.p[i], value: s.p[i], min: 0.01, max: 0.98, step: 0.01, name: `probability of ${word}`,
          set(value) { // the other two share the rest as before
            const rest = 1 - s.p[i];
            change({ p: s.p.map((q, k) => (k === i ? value : (q / rest) * (1 - value))) });
          },
        });
      });
      const high = Math.max(0.5, ...n.cloud.flat().map(Math.abs), ...n.gradient.map(Math.abs)) * 1.1;
      const right = X.chart(view, { title: `the gradient, and ${REPEATS} estimates from ${s.samples} word${s.samples > 1 ? "s" : ""} each`, x: [-0.6, 2.6], y: [-high, high], xticks: names });
      right.rule(0, "quiet", { across: true, dash: "" });
      const jitter = X.randomFrom(99);
      for (const estimate of n.cloud) estimate.forEach((v, k) => right.dot(k - 0.28 + 0.56 * jitter(), v, "policy", { r: 3, opacity: 0.4 }));
      n.gradient.forEach((v, k) => right.line([[k - 0.36, v], [k + 0.36, v]], "exact", { width: 3 }));
      X.legend(view, [["true gradient", "exact", "line"], ["an estimate", "policy", "dot"]]);
    },
    formula(s, n) {
      const parts = WORDS.map((w, i) => `${w} ${X.fixed(s.p[i])} \u00d7 (${X.fixed(rewards(s)[i], 1)} \u2212 ${X.fixed(n.J)}) = <b>${X.signed(n.gradient[i])}</b>`);
      const times = n.length > 1e-9 ? `${X.fixed(n.noise / n.length, 1)} times as long as the gradient` : "and the gradient is 0";
      return `J = E[R] = <b>${X.fixed(n.J)}</b>. True gradient \u03c0 (R \u2212 J): ${parts.join("; ")}.<br>` +
        `Estimate: mean of (R \u2212 b) \u2207 log \u03c0. Its average is the true gradient for every b; its scatter is <b>${X.fixed(n.noise)}</b>, ${times}.`;
    },
  });
})();
