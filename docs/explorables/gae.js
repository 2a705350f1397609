"use strict";
// A recorded answer of page 09: values, TD errors, and the advantages that gamma and lambda make of them.
(() => {
  const X = globalThis.explorables;
  // Values are means over 24 sampled completions of every prefix, and, in the last answer, those of a trained critic.
  const ANSWERS = {
    kind: {
      words: "carpet: a kind answer", score: 1.9819,
      tokens: ["Hello", " Kate", ".", " This", " carpet", " is", " splendid", ".", " I", " hope", " this", " helps", ".", "<EOS>"],
      values: [0.28424, 0.65904, 0.72463, 0.58748, 0.99022, 1.0451, 1.0931, 1.3667, 1.5342, 1.9665, 1.9781, 1.9658, 1.9819, 1.9819],
    },
    wrong: {
      words: "carpet: about the wrong thing", score: -0.82564,
      tokens: ["The", " bike", " is", " dull", ".", " Its", " design", " is", " bad", ".", "<EOS>"],
      values: [0.28424, 0.64213, -0.24005, -0.38194, -0.26734, -0.54087, -0.35107, -0.38925, -0.25088, -0.62142, -0.59661],
    },
    critic: {
      words: "ladder: a trained critic's values", score: 0.853156,
      tokens: ["The", " ladder", " is", " nice", ".", " Thank", " you", " for", " asking", ".", "<EOS>"],
      values: [0.43419, 0.5141, 0.42807, 0.29368, 0.71929, 0.85448, 0.84566, 0.55381, 0.79112, 0.94424, 0.90843],
    },
  };

  X.define("gae", {
    question: "Which word earned the reward?",
    start: { answer: "wrong", gamma: 1, lambda: 0.95, score: -0.82564, chosen: 0 },
    controls: [
      { key: "answer", label: "answer", options: Object.entries(ANSWERS).map(([name, { words }]) => [name, words]), also: (s) => ({ score: ANSWERS[s.answer].score, chosen: 0 }) },
      { key: "gamma", label: "\u03b3 (discount)", min: 0.5, max: 1, step: 0.01 },
      { key: "lambda", label: "\u03bb", min: 0, max: 1, step: 0.01 },
      { key: "score", label: "score at the end", min: -2, max: 3, step: 0.05 },
      { label: "The recorded score", press: (s) => ({ score: ANSWERS[s.answer].score }) },
    ],
    tries: [
      "Take \u03bb down to 0: each word gets its own TD error, so <i>bike</i> alone is blamed. With \u03bb = 1 every word gets all that follows.",
      "Tap a word: the dashed line shows how much each later TD error counts for it, (\u03b3\u03bb)<sup>k</sup>.",
      "Change the score at the end. With \u03bb = 0 only the last token notices.",
    ],
    compute(s) {
      const { tokens, values } = ANSWERS[s.answer];
      const rewards = tokens.map((_, t) => (t === tokens.length - 1 ? s.score : 0));
      const deltas = tokens.map((_, t) => rewards[t] + s.gamma * (values[t + 1] ?? 0) - values[t]);
      const advantages = [...deltas];
      for (let t = tokens.length - 2; t >= 0; t--) advantages[t] += s.gamma * s.lambda * advantages[t + 1];
      const chosen = Math.min(s.chosen, tokens.length - 1);
      const weights = tokens.map((_, t) => (t < chosen ? 0 : (s.gamma * s.lambda) ** (t - chosen)));
      return { tokens, values, rewards, deltas, advantages, returns: advantages.map((a, t) => a + values[t]), weights, chosen };
    },
    draw(view, s, n, change) {
      const full = Math.max(...n.deltas.map(Math.abs));
      view.append(X.make("div", { class: "gx-cells", role: "group", "aria-label": "TD errors, token by token" }, ...n.tokens.map((token, t) =>
        X.make("button", {
          type: "button", class: "gx-cell", style: `background:${X.pushColour(n.deltas[t], full)}`, "aria-pressed": t === n.chosen, "data-handle": `token ${t}`,
          onclick: () => change({ chosen: t }),
        }, token.trim(), X.make("small", { text: X.signed(n.deltas[t]) })))));
      const count = n.tokens.length;
      const reach = Math.max(0.3, ...n.advantages.map(Math.abs), full) * 1.1;
      const x = [-0.6, count - 0.4];
      const upper = X.chart(view, { title: "TD error and advantage of each token", x, y: [-reach, reach], xticks: n.tokens.map((_, t) => [t, String(t)]), xlabel: "token" });
      n.tokens.forEach((_, t) => {
        upper.bar(t - 0.18, 0.34, n.deltas[t], "critic");
        upper.bar(t + 0.18, 0.34, n.advantages[t], "policy");
      });
      upper.rule(0, "quiet", { across: true, dash: "" });
      const all = [...n.values, s.score, 0];
      const lower = X.chart(view, { title: `what counts for token ${n.chosen}, and the values`, x, y: [Math.min(-0.1, ...all) * 1.1, Math.max(1, ...all) * 1.1], xticks: n.tokens.map((_, t) => [t, String(t)]), xlabel: "token" });
      n.weights.forEach((w, t) => w && lower.bar(t, 0.6, w, "reference", { opacity: 0.35 }));
      lower.line(n.weights.map((w, t) => [t, w]).slice(n.chosen), "exact", { dash: "5 3" });
      lower.line(n.values.map((v, t) => [t, v]), "critic");
      n.values.forEach((v, t) => lower.dot(t, v, "critic", { r: 3 }));
      lower.handle({ at: count - 1, up: s.score, value: s.score, min: -2, max: 3, step: 0.05, name: "score at the end", colour: "proxy", set: (score) => change({ score }) });
      X.legend(view, [["TD error \u03b4, and V", "critic"], ["advantage A", "policy"], ["weight (\u03b3\u03bb)^k", "exact", "dash"], ["score (drag it)", "proxy", "dot"]]);
    },
    formula(s, n) {
      const t = n.chosen;
      const next = n.values[t + 1] ?? 0;
      const terms = n.deltas.slice(t, t + 4).map((d, k) => `${k ? `${X.fixed(n.weights[t + k])} \u00d7 ` : ""}(${X.signed(d)})`).join(" + ");
      return `${JSON.stringify(n.tokens[t].trim())}: \u03b4 = r + \u03b3 V<sub>next</sub> \u2212 V = ${X.fixed(n.rewards[t])} + ${X.fixed(s.gamma)} \u00d7 ${X.fixed(next)} \u2212 ${X.fixed(n.values[t])} = <b>${X.signed(n.deltas[t])}</b><br>` +
        `A = \u03b4 + \u03b3\u03bb \u03b4<sub>+1</sub> + (\u03b3\u03bb)\u00b2 \u03b4<sub>+2</sub> + \u2026 = ${terms}${n.deltas.length - t > 4 ? " + \u2026" : ""} = <b>${X.signed(n.advantages[t])}</b>`;
    },
    ANSWERS,
  });
})();
