"use strict";
// Six answers, their rewards and a reference: a policy that is trained here, and where it must end.
(() => {
  const X = globalThis.explorables;
  const ANSWERS = ["great, thanks", "great", "fine", "so so", "awful", "go away"];
  const REF = [0.05, 0.15, 0.3, 0.25, 0.15, 0.1];
  const LOG_REF = REF.map(Math.log);
  const GROUP = 8;
  // How often a batch is used, and the learning rate; it falls as 1 / (1 + t / 200).
  const ENGINES = {
    reinforce: { words: "REINFORCE", updates: 1, lr: 0.7 },
    rloo: { words: "RLOO", updates: 1, lr: 1.5 },
    ppo: { words: "PPO (a value, a clip)", updates: 3, lr: 0.7 },
    grpo: { words: "GRPO, KL in the reward", updates: 2, lr: 0.1 },
    grpo_loss: { words: "GRPO, k3 in the loss", updates: 2, lr: 0.1 },
  };
  const MOST = 1500; // steps
  const beta = (s) => 10 ** s.power;

  /** pi_ref exp(r / beta) / Z: the best policy that there is. */
  const closedForm = (s) => X.softmax(LOG_REF.map((l, i) => l + s.r[i] / beta(s)));

  const objective = (s, p) => X.dot(p, s.r) - beta(s) * X.kl(p, REF);

  /** What a run holds: logits, PPO's value, its random numbers, and what it has reached at each step. */
  function begin(s) {
    return { s, theta: [...LOG_REF], value: 0, step: 0, random: X.randomFrom(s.seed), curve: [objective(s, REF)] };
  }

  /** Advantages of a batch, and minus the loss's gradient by each answer's log pi, given today's log-probs. */
  function pushes(run, words, old, now) {
    const { s } = run;
    const inLoss = s.engine === "grpo_loss";
    const b = beta(s);
    const rewards = words.map((w) => s.r[w] - (inLoss ? 0 : b * (old[w] - LOG_REF[w]))); // the KL as k1 in the reward
    const groups = X.range(words.length / GROUP).map((g) => rewards.slice(g * GROUP, (g + 1) * GROUP));
    const advantages = rewards.map((r, i) => {
      const group = groups[Math.floor(i / GROUP)];
      const mean = X.mean(group);
      if (s.engine === "reinforce") return r;
      if (s.engine === "ppo") return r - run.value;
      if (s.engine === "rloo") return ((r - mean) * GROUP) / (GROUP - 1);
      return (r - mean) / (Math.sqrt(X.sum(group.map((v) => (v - mean) ** 2)) / (GROUP - 1)) + 1e-4);
    });
    const clips = s.engine !== "reinforce" && s.engine !== "rloo";
    const weights = words.map((w, i) => {
      if (!clips) return advantages[i];
      const ratio = Math.exp(now[w] - old[w]);
      const acted = X.clamp(ratio, 0.8, 1.2) * advantages[i] < ratio * advantages[i];
      const pull = inLoss ? b * (Math.exp(LOG_REF[w] - now[w]) - 1) : 0; // minus the gradient of beta k3
      return (acted ? 0 : ratio * advantages[i]) + pull;
    });
    return { rewards, advantages, weights };
  }

  /** The mean over the batch of weight times grad log pi, by the logits. */
  function ascent(words, weights, now) {
    const p = now.map(Math.exp);
    const total = X.sum(weights);
    const gradient = p.map((q) => -q * total);
    words.forEach((w, i) => (gradient[w] += weights[i]));
    return gradient.map((g) => g / words.length);
  }

  const logProbs = (theta) => X.softmax(theta).map((p) => Math.log(Math.max(p, 1e-300)));

  /** One batch: sample, judge, update. Returns what happened in its first update. */
  function step(run) {
    const { s, theta } = run;
    const { updates, lr } = ENGINES[s.engine];
    const old = logProbs(theta);
    const p = old.map(Math.exp);
    const words = X.range(s.batch * GROUP).map(() => X.drawn(p, run.random()));
    let first = null;
    for (let u = 0; u < updates; u++) {
      const now = logProbs(run.theta);
      const found = pushes(run, words, old, now);
      const gradient = ascent(words, found.weights, now);
      first ||= { words, old, gradient, value: run.value, ...found };
      const rate = lr / (1 + run.step / 200) / (s.engine.startsWith("grpo") ? 1 : 1 + beta(s)); // GRPO divides by the spread
      run.theta = run.theta.map((v, k) => v + rate * gradient[k]);
    }
    run.value += 0.2 * (X.mean(first.rewards) - run.value);
    run.step++;
    run.curve.push(objective(s, X.softmax(run.theta)));
    return first;
  }

  function train(s, steps) {
    const run = begin(s);
    for (let t = 0; t < steps; t++) step(run);
    return run;
  }

  const same = (a, b) => ["engine", "power", "batch", "seed"].every((key) => a[key] === b[key]) && a.r.every((v, i) => v === b.r[i]);
  let run = null; // the one on the page: as far as its settings have been trained
  let timer = null;

  const kind = {
    columns: 3,
    question: "How long is the leash, and does training end where the formula says?",
    start: { engine: "rloo", power: -0.5, batch: 4, seed: 1, r: [1, 0.8, 0.5, 0.3, 0.1, 0], steps: 0 },
    controls: [
      { key: "engine", label: "engine", options: Object.entries(ENGINES).map(([name, { words }]) => [name, words]) },
      { key: "power", label: "\u03b2 (price of a nat)", min: -1.3, max: 1, step: 0.05, show: (v) => X.fixed(10 ** v, v < -0.7 ? 3 : 2) },
      { key: "batch", label: "groups of 8 a step", min: 1, max: 16, step: 1, digits: 0 },
      { key: "seed", label: "seed", min: 1, max: 20, step: 1, digits: 0 },
      { label: "Train / pause", press: () => play() },
      { label: "100 steps", press: (s) => ({ steps: Math.min(s.steps + 100, MOST) }) },
      { label: "From the start", press: () => ({ steps: 0 }) },
    ],
    tries: [
      "Press <b>Train</b>: the blue bars move to the marks of the closed form. Change \u03b2, a reward or the engine and train again.",
      "Small \u03b2: the best answer takes all. Large \u03b2: the policy stays the reference. The objective can never pass \u03b2 log Z.",
      "REINFORCE has no baseline: watch its curve shake. At the goal RLOO, PPO and the first GRPO stand still, because there every answer is worth the same.",
      "Switch to <b>k3 in the loss</b>, GRPO's own form: it divides the rewards by their spread and not the KL, so it ends somewhere else.",
    ],
    compute(s) {
      if (!run || !same(run.s, s) || run.step > s.steps) run = begin({ ...s });
      while (run.step < s.steps) step(run);
      const p = X.softmax(run.theta);
      const goal = closedForm(s);
      const logZ = Math.log(X.dot(REF, s.r.map((v) => Math.exp(v / beta(s)))));
      return { p, goal, beta: beta(s), best: beta(s) * logZ, reached: objective(s, p), reward: X.dot(p, s.r), kl: X.kl(p, REF), apart: X.kl(p, goal), curve: [...run.curve] };
    },
    draw(view, s, n, change) {
      const names = ANSWERS.map((_, i) => [i, String.fromCharCode(65 + i)]);
      const left = X.chart(view, { title: "the policy, and where it must end", x: [-0.6, 5.6], y: [0, 1], xticks: names });
      ANSWERS.forEach((_, i) => {
        left.bar(i - 0.2, 0.3, REF[i], "reference", { opacity: 0.6 });
        left.bar(i + 0.15, 0.4, n.p[i], "policy");
        left.line([[i - 0.12, n.goal[i]], [i + 0.42, n.goal[i]]], "exact", { width: 3.5 });
      });
      const middle = X.chart(view, { title: "rewards: drag them", x: [-0.6, 5.6], y: [-0.5, 1.5], xticks: names });
      ANSWERS.forEach((words, i) => {
        middle.bar(i, 0.5, s.r[i], "proxy", { opacity: 0.6 });
        middle.handle({ at: i, up: s.r[i], value: s.r[i], min: -0.5, max: 1.5, step: 0.05, name: `reward of ${words}`, colour: "proxy", set: (v) => change({ r: s.r.map((o, k) => (k === i ? v : o)), steps: 0 }) });
      });
      const low = Math.min(...n.curve);
      const top = n.best + 0.12 * (n.best - low || 0.1);
      const right = X.chart(view, { title: "E[R] \u2212 \u03b2 KL while it trains", x: [0, Math.max(100, s.steps)], y: [low - 0.05 * (top - low), top], xlabel: "step", left: 48, ytext: (v) => String(Number(v.toFixed(3))) });
      right.rule(n.best, "exact", { across: true });
      const every = Math.ceil(n.curve.length / 400);
      right.line(n.curve.map((v, t) => [t, v]).filter((_, t) => t % every === 0 || t === n.curve.length - 1), "policy");
      X.legend(view, [[ANSWERS.map((words, i) => `${String.fromCharCode(65 + i)} ${words}`).join(", ")], ["reference", "reference"], ["policy in training", "policy"], ["closed form; \u03b2 log Z", "exact", "line"], ["reward", "proxy"]]);
    },
    formula: (s, n) =>
      `\u03c0* = \u03c0 ref exp(r/\u03b2) / Z with \u03b2 = ${X.fixed(n.beta, 3)}: best answer <b>${X.fixed(Math.max(...n.goal))}</b>. After <b>${s.steps}</b> steps: ` +
      `E[R] = <b>${X.fixed(n.reward, 3)}</b>, KL = <b>${X.fixed(n.kl, 3)}</b> nats,<br>E[R] \u2212 \u03b2 KL = <b>${X.fixed(n.reached, 4)}</b> of at most \u03b2 log Z = <b>${X.fixed(n.best, 4)}</b>; still ` +
      `<b>${X.fixed(n.apart, 4)}</b> nats from \u03c0*.`,
    begin, step, train, pushes, ascent, logProbs, closedForm, ENGINES, REF,
  };

  /** Ten steps a frame until the end, or until pressed again. */
  function play() {
    const here = X.mounted.leash;
    if (timer) {
      clearInterval(timer);
      timer = null;
      return;
    }
    if (here.state().steps >= MOST) here.change({ steps: 0 });
    timer = setInterval(() => {
      const steps = Math.min(here.state().steps + 10, MOST);
      here.change({ steps });
      if (steps === MOST) {
        clearInterval(timer);
        timer = null;
      }
    }, 60);
  }

  X.define("leash", kind);
})();
