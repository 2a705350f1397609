"use strict";
// Four answers to one prompt: what a token of each weighs under six losses.
(() => {
  const X = globalThis.explorables;
  const BUDGET = 32; // the longest an answer may become: Dr. GRPO's constant
  const spread = (group) => Math.sqrt(X.sum(group.map((v) => (v - X.mean(group)) ** 2)) / (group.length - 1));
  const zScores = (r) => r.map((v) => (v - X.mean(r)) / (spread(r) + 1e-4));
  const centred = (r) => r.map((v) => v - X.mean(r));
  const leaveOneOut = (r) => r.map((v) => ((v - X.mean(r)) * r.length) / (r.length - 1));
  const clipped = (ratio, A, low, high) => (X.clamp(ratio, 1 - low, 1 + high) * A < ratio * A ? 0 : ratio * A);

  const perAnswer = (lengths) => lengths.map((L) => 1 / (lengths.length * L));
  const perToken = (lengths) => lengths.map(() => 1 / X.sum(lengths));
  // advantages, push on log pi at this ratio, share of one token in the mean
  const LOSSES = {
    grpo: { words: "GRPO", advantages: zScores, push: (ratio, A) => clipped(ratio, A, 0.2, 0.2), share: perAnswer, mean: "1/N \u03a3 1/L \u03a3" },
    dapo: { words: "DAPO", advantages: zScores, push: (ratio, A) => clipped(ratio, A, 0.2, 0.28), share: perToken, mean: "1/\u03a3L \u03a3\u03a3" },
    dr_grpo: { words: "Dr. GRPO", advantages: centred, push: (ratio, A) => clipped(ratio, A, 0.2, 0.2), share: (lengths) => lengths.map(() => 1 / (lengths.length * BUDGET)), mean: `1/(N \u00d7 ${BUDGET}) \u03a3\u03a3` },
    rloo: { words: "RLOO", advantages: leaveOneOut, push: (ratio, A) => A, share: (lengths) => lengths.map(() => 1 / lengths.length), mean: "1/N \u03a3\u03a3" },
    gspo: { words: "GSPO", advantages: zScores, push: (ratio, A) => clipped(ratio, A, 3e-4, 4e-4), share: perAnswer, mean: "1/N \u03a3 1/L \u03a3" },
    cispo: { words: "CISPO", advantages: zScores, push: (ratio, A) => Math.min(ratio, 5) * A, share: perToken, mean: "1/\u03a3L \u03a3\u03a3" },
  };

  X.define("reducers", {
    question: "Who pays for a long answer?",
    start: { loss: "grpo", lengths: [4, 24, 8, 16], right: [true, false, false, true], ratio: 1 },
    controls: [
      { key: "loss", label: "loss", options: Object.entries(LOSSES).map(([name, { words }]) => [name, words]) },
      { key: "ratio", label: "ratio of all tokens", min: 0.5, max: 2, step: 0.01 },
      { label: "One short, one long", press: () => ({ lengths: [4, 32, 4, 32], right: [true, false, false, true] }) },
    ],
    tries: [
      "Drag the long wrong answer longer. Under GRPO each of its tokens gets paler: being wrong at length is cheap. Under DAPO all tokens of the batch weigh alike; under Dr. GRPO the length changes nothing.",
      "Tap an answer's name to make it right or wrong. When all are right, only a fresh prompt can teach anything.",
      "Move the ratio to 1.25: GRPO stops pushing the good answers, DAPO does not yet; GSPO has stopped long ago; CISPO and RLOO never do.",
    ],
    compute(s) {
      const rewards = s.right.map(Number);
      const table = Object.fromEntries(Object.entries(LOSSES).map(([name, loss]) => {
        const advantages = loss.advantages(rewards);
        const shares = loss.share(s.lengths);
        return [name, { advantages, shares, weights: advantages.map((A, i) => loss.push(s.ratio, A) * shares[i]) }];
      }));
      return { rewards, table, ...table[s.loss] };
    },
    draw(view, s, n, change) {
      const full = Math.max(...n.weights.map(Math.abs), 1e-9);
      const chart = X.chart(view, { title: "drag the end of an answer; a cell is a token, its colour the push on it", x: [0, BUDGET + 1], y: [0, 4], height: 190, left: 62, xlabel: "tokens", ytext: () => "", label: "answers", full: true });
      s.lengths.forEach((L, i) => {
        const up = 3.5 - i;
        for (let t = 0; t < L; t++) {
          chart.put("rect", { x: chart.px(t) + 1, y: chart.py(up + 0.3), width: Math.max(chart.px(1) - chart.px(0) - 2, 1), height: chart.py(0) - chart.py(0.6), rx: 2,
            fill: X.pushColour(n.weights[i], full), stroke: "var(--gx-edge)" });
        }
        const flip = () => change({ right: s.right.map((v, k) => (k === i ? !v : v)) });
        const name = chart.text(54, chart.py(up) + 4, s.right[i] ? "\u2713 right" : "\u2717 wrong", { anchor: "end", colour: s.right[i] ? "gold" : "bad", weight: 600 });
        for (const [key, value] of Object.entries({ role: "button", tabindex: 0, style: "cursor:pointer", "data-handle": `verdict ${i}`, "aria-label": `answer ${i + 1}: ${s.right[i] ? "right" : "wrong"}` })) name.setAttribute(key, value);
        name.addEventListener("click", flip);
        name.addEventListener("keydown", (e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), flip()));
        chart.handle({ at: L, up, value: L, min: 1, max: BUDGET, step: 1, name: `length of answer ${i + 1}`, along: true, set: (v) => change({ lengths: s.lengths.map((o, k) => (k === i ? v : o)) }) });
      });
      const rows = Object.entries(LOSSES).map(([name, loss]) => {
        const { weights } = n.table[name];
        const highest = Math.max(...weights.map(Math.abs), 1e-9);
        const cells = weights.map((w) => X.make("td", { text: X.signed(w, 4), style: `background:${X.pushColour(w, highest)}` }));
        return X.make("tr", { class: name === s.loss ? "on" : "" }, X.make("th", { scope: "row", text: loss.words, onclick: () => change({ loss: name }) }), X.make("td", { class: "gx-optional", text: loss.mean }), ...cells);
      });
      const head = X.make("tr", {}, X.make("th", { text: "loss" }), X.make("th", { class: "gx-optional", text: "mean" }), ...s.lengths.map((L, i) => X.make("th", { text: `${s.right[i] ? "right" : "wrong"}, ${L}` })));
      view.append(X.make("div", { class: "gx-scroll", tabindex: 0 }, X.make("table", {}, X.make("thead", {}, head), X.make("tbody", {}, ...rows))));
    },
    formula(s, n) {
      const i = s.lengths.indexOf(Math.max(...s.lengths));
      const loss = LOSSES[s.loss];
      return `${loss.words}, a token of the longest answer: A = <b>${X.signed(n.advantages[i])}</b>, push <b>${X.signed(loss.push(s.ratio, n.advantages[i]))}</b> \u00d7 share ${X.fixed(n.shares[i], 4)} = <b>${X.signed(n.weights[i], 4)}</b>; ` +
        `all ${s.lengths[i]} together <b>${X.signed(n.weights[i] * s.lengths[i], 3)}</b>.<br>The table says what one token of each answer gets. Colours compare within a row.`;
    },
    BUDGET,
  });
})();
