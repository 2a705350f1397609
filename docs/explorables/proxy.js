"use strict";
// A gold reward, a proxy that is learned from noisy comparisons, and an optimiser that believes the proxy.
(() => {
  const X = globalThis.explorables;
  const PARTS = ["kind words", "thanks", "details"];
  const MOST = 6; // of each in an answer
  const RATES = [0.8, 0.5, 1.0]; // how often the base model writes each: Poisson, cut off at MOST
  const PEAKS = [2, 1, 3]; // how many of each are best
  const WORTH = [0.35, 0.25, 0.4]; // what the best number of each is worth
  const RIDGE = 0.3; // of the sum over pairs, so that many labels outweigh it
  const GRID = X.linspace(0, 1, 81); // pressures at which the curve is drawn

  const ANSWERS = [];
  for (let a = 0; a <= MOST; a++) for (let b = 0; b <= MOST; b++) for (let c = 0; c <= MOST; c++) ANSWERS.push([a, b, c]);

  /** Each part rises to its peak and falls after it, as the square of the distance. */
  const goldOf = (answer) => X.sum(answer.map((n, j) => WORTH[j] * (1 - ((n - PEAKS[j]) / PEAKS[j]) ** 2)));
  const featuresOf = (answer) => answer.flatMap((n) => [n / MOST, (n / MOST) ** 2]);
  const GOLD = ANSWERS.map(goldOf);
  const FEATURES = ANSWERS.map(featuresOf);
  const LOG_REF = (() => {
    const factorial = (n) => (n < 2 ? 1 : n * factorial(n - 1));
    const raw = ANSWERS.map((answer) => X.sum(answer.map((n, j) => n * Math.log(RATES[j]) - Math.log(factorial(n)))));
    return X.softmax(raw).map(Math.log);
  })();
  const REF = LOG_REF.map(Math.exp);
  const sigmoid = (v) => 1 / (1 + Math.exp(-v));

  /** Pairs of the base model's answers, each [preferred, other]; noise is the annotator's temperature. */
  function compare(count, noise, seed) {
    const random = X.randomFrom(seed);
    return X.range(count).map(() => {
      const [a, b] = [X.drawn(REF, random()), X.drawn(REF, random())];
      return random() < sigmoid((GOLD[a] - GOLD[b]) / noise) ? [a, b] : [b, a];
    });
  }

  /** Solve M v = y for a small symmetric matrix. */
  function solve(M, y) {
    const rows = M.map((row, i) => [...row, y[i]]);
    rows.forEach((_, i) => {
      const best = X.range(rows.length).slice(i).reduce((a, b) => (Math.abs(rows[b][i]) > Math.abs(rows[a][i]) ? b : a));
      [rows[i], rows[best]] = [rows[best], rows[i]];
      rows[i] = rows[i].map((v) => v / rows[i][i]);
      rows.forEach((row, k) => k !== i && (rows[k] = row.map((v, j) => v - row[i] * rows[i][j])));
    });
    return rows.map((row) => row.at(-1));
  }

  /** Bradley-Terry by Newton's method: sum of -log sigmoid(r(preferred) - r(other)), and RIDGE/2 |w|^2. */
  function fit(pairs) {
    const gaps = pairs.map(([a, b]) => FEATURES[a].map((v, j) => v - FEATURES[b][j]));
    let w = FEATURES[0].map(() => 0);
    for (let round = 0; round < 30; round++) {
      const gradient = w.map((v) => RIDGE * v);
      const hessian = w.map((_, i) => w.map((_, j) => (i === j ? RIDGE : 0)));
      for (const gap of gaps) {
        const p = sigmoid(X.dot(w, gap));
        gap.forEach((v, i) => {
          gradient[i] += (p - 1) * v;
          gap.forEach((u, j) => (hessian[i][j] += p * (1 - p) * v * u));
        });
      }
      const change = solve(hessian, gradient);
      w = w.map((v, i) => v - change[i]);
      if (Math.max(...change.map(Math.abs)) < 1e-10) break;
    }
    return w;
  }

  const betaOf = (pressure) => 10 ** (1.2 - 3 * pressure);
  const policyAt = (scores, pressure) => X.softmax(LOG_REF.map((l, i) => l + scores[i] / betaOf(pressure)));
  const countOf = (s) => Math.round(10 ** s.labels);

  let memory = {}; // the fit is the slow part, and pressure does not change it
  function learned(s) {
    const key = JSON.stringify([countOf(s), s.noise, s.seed]);
    if (memory.key !== key) {
      const pairs = compare(countOf(s), s.noise, s.seed);
      const weights = fit(pairs);
      const raw = FEATURES.map((f) => X.dot(weights, f));
      const mean = X.dot(REF, raw);
      const spread = Math.sqrt(X.dot(REF, raw.map((v) => (v - mean) ** 2))) || 1;
      const scores = raw.map((v) => (v - mean) / spread); // mean 0 and spread 1 on the base model's answers
      const curve = GRID.map((pressure) => {
        const p = policyAt(scores, pressure);
        return { pressure, kl: X.kl(p, REF), gold: X.dot(p, GOLD), proxy: X.dot(p, scores) };
      });
      const right = pairs.filter(([a, b]) => GOLD[a] > GOLD[b]).length / pairs.length;
      memory = { key, pairs, weights, scores, curve, right };
    }
    return memory;
  }

  X.define("proxy", {
    question: "How hard may one optimise a reward that was learned?",
    start: { labels: 2.3, noise: 0.2, seed: 1, pressure: 0.5 },
    controls: [
      { key: "pressure", label: "optimisation pressure", min: 0, max: 1, step: 0.0125 },
      { key: "labels", label: "labels", min: 1, max: 4, step: 0.1, show: (v) => String(Math.round(10 ** v)) },
      { key: "noise", label: "annotator's noise", min: 0.05, max: 1, step: 0.05 },
      { key: "seed", label: "seed of the labels", min: 1, max: 20, step: 1, digits: 0 },
    ],
    tries: [
      "Raise the pressure slowly. The proxy (orange) only ever rises. Gold (green) turns, because the policy leaves the region that was labelled.",
      "Give it 10 labels, then 1,000, then 10,000: the turn comes later and from higher up, and with 10,000 labels there is none.",
      "Look at the counts: the policy overdoes whatever the proxy believes, wrongly, to be good in any amount.",
    ],
    compute(s) {
      const { curve, scores, right, pairs, weights } = learned(s);
      const p = policyAt(scores, s.pressure);
      const peak = curve.reduce((a, b) => (b.gold > a.gold + 1e-9 ? b : a));
      const turned = peak !== curve.at(-1) && peak.gold - curve.at(-1).gold > 1e-3;
      const counts = PARTS.map((_, j) => X.dot(p, ANSWERS.map((answer) => answer[j])));
      return { kl: X.kl(p, REF), gold: X.dot(p, GOLD), proxy: X.dot(p, scores), beta: betaOf(s.pressure), counts, peak, turned, right, pairs: pairs.length, weights, curve };
    },
    draw(view, s, n, change) {
      const last = n.curve.at(-1);
      const first = n.curve[0];
      const best = Math.max(...GOLD);
      const scaled = (v) => first.gold + ((v - first.proxy) / (last.proxy - first.proxy || 1)) * (best - first.gold);
      const low = Math.min(0, ...n.curve.map((row) => row.gold));
      const left = X.chart(view, { title: "gold and proxy against the distance", x: [0, Math.max(last.kl, 1)], y: [low, best * 1.08], xlabel: "KL(policy || base) in nats" });
      left.rule(best, "quiet", { across: true });
      left.line(n.curve.map((row) => [row.kl, scaled(row.proxy)]), "proxy", { dash: "6 4" });
      left.line(n.curve.map((row) => [row.kl, row.gold]), "gold", { width: 3 });
      if (n.turned) {
        left.rule(n.peak.kl, "bad");
        const late = left.px(n.peak.kl) > left.box.right - 70; // no room to its right
        left.text(left.px(n.peak.kl) + (late ? -5 : 5), left.box.bottom - 6, "gold turns", { colour: "bad", anchor: late ? "end" : "start" });
      }
      left.dot(n.kl, scaled(n.proxy), "proxy", { r: 6 });
      left.dot(n.kl, n.gold, "gold", { r: 7 });
      const right = X.chart(view, { title: "what the policy writes (mean number in an answer)", x: [-0.6, 2.6], y: [0, MOST], xticks: PARTS.map((words, j) => [j, words]) });
      PARTS.forEach((_, j) => {
        right.bar(j - 0.2, 0.3, X.dot(REF, ANSWERS.map((answer) => answer[j])), "reference", { opacity: 0.6 });
        right.bar(j + 0.15, 0.4, n.counts[j], "policy");
        right.line([[j - 0.12, PEAKS[j]], [j + 0.42, PEAKS[j]]], "gold", { width: 3.5 });
      });
      X.legend(view, [["gold; the number gold likes best", "gold", "line"], ["proxy, rescaled", "proxy", "dash"], ["base model", "reference"], ["policy", "policy"]]);
    },
    formula: (s, n) =>
      `proxy: Bradley-Terry on <b>${n.pairs}</b> comparisons, of which ${X.fixed(100 * n.right, 0)}% agree with gold. Policy: base \u00d7 exp(proxy/\u03b2) / Z, \u03b2 = ${X.fixed(n.beta, 3)}.<br>` +
      `At <b>${X.fixed(n.kl)}</b> nats: proxy <b>${X.signed(n.proxy)}</b>, gold <b>${X.fixed(n.gold, 3)}</b>. ` +
      (n.turned ? `Gold is highest at ${X.fixed(n.peak.kl)} nats (<b>${X.fixed(n.peak.gold, 3)}</b>), then it falls to ${X.fixed(n.curve.at(-1).gold, 3)}.` : "Gold never turns here: these labels were good enough."),
    compare, fit, policyAt, betaOf, ANSWERS, FEATURES, GOLD, REF, RIDGE,
  });
})();
