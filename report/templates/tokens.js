/* Draws one view from the JSON beside it. Text is set as text, never as markup. */
function glassTokens(root) {
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  if (!data.frames.length) return;
  const kinds = [...new Set(data.frames.map(f => f.kind))];
  const state = {kind: kinds.includes('training') ? 'training' : kinds[0], step: 0, row: 0, quantity: 0};
  const frames = () => data.frames.filter(f => f.kind === state.kind);
  const has = (frame, i) => frame.rows.some(r => data.quantities[i].name in r.values);
  const add = (parent, tag, cls, text) => {
    const node = document.createElement(tag);
    if (cls) node.className = cls;
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };
  const show = v => v === null || v === undefined ? 'no number'
    : v !== 0 && Math.abs(v) < 0.001 ? v.toExponential(1)
    : v.toFixed(Math.abs(v) < 10 ? 3 : 1);
  const signed = v => (v > 0 ? '+' : '') + show(v);
  const small = v => v === null || v === undefined ? '' : v === 0 ? '0' : Math.abs(v) < 0.005 ? '~0' : v.toFixed(2);
  const visible = t => t.replace(/\n/g, '↵').replace(/^ /, '·') || '∅';
  const colour = (v, scale) => {
    if (v === null || v === undefined) return '#dddddd';
    const share = Math.max(-1, Math.min(1, v / scale));
    const end = share > 0 ? [70, 145, 210] : [230, 128, 30];
    return `rgb(${end.map(e => Math.round(255 + (e - 255) * Math.abs(share)))})`;
  };
  root.querySelector('.gt-static').remove();
  const ui = add(root, 'div');
  const bars = {};
  for (const name of ['kind', 'quantity', 'step', 'response']) {
    bars[name] = add(ui, 'div', 'gt-bar');
    add(bars[name], 'span', 'gt-name', name === 'kind' ? 'shown' : name);
  }
  const about = add(ui, 'p', 'gt-about');
  const prompt = add(ui, 'div', 'gt-prompt');
  const big = add(ui, 'div', 'gt-big');
  const read = add(ui, 'div', 'gt-read');
  read.setAttribute('aria-live', 'polite');
  const others = add(ui, 'div');
  add(ui, 'p', 'gt-keys', 'Keys: ← → response, ↑ ↓ step, Q quantity, V what is shown. Tab goes from token to token.');
  const button = (bar, text, on) => {
    const node = add(bar, 'button', '', text);
    node.type = 'button';
    node.addEventListener('click', () => { on(); draw(); });
    return node;
  };
  const sets = kinds.length > 1 ? kinds.map(kind => [kind, button(bars.kind, kind || 'responses', () => { state.kind = kind; })]) : [];
  if (!sets.length) bars.kind.remove();
  const chosen = data.quantities.map((q, i) => button(bars.quantity, q.label, () => { state.quantity = i; }));
  const slider = add(bars.step, 'input');
  slider.type = 'range'; slider.min = 0; slider.setAttribute('aria-label', 'training step');
  button(bars.step, '‹', () => { state.step--; }).setAttribute('aria-label', 'earlier step');
  button(bars.step, '›', () => { state.step++; }).setAttribute('aria-label', 'later step');
  const label = add(bars.step, 'b');
  slider.addEventListener('input', () => { state.step = Number(slider.value); draw(); });
  button(bars.response, '‹', () => { state.row--; }).setAttribute('aria-label', 'response before');
  button(bars.response, '›', () => { state.row++; }).setAttribute('aria-label', 'next response');
  const which = add(bars.response, 'b');
  const details = (row, t) => {
    const all = data.quantities.filter(q => row.values[q.name]).map(q => `${q.label} ${signed(row.values[q.name][t])}`);
    return `“${row.tokens[t]}”  ${all.join('  ·  ')}${row.clipped[t] ? '  ·  the clip acts here' : ''}`;
  };
  const notes = row => Object.entries(row.notes).map(([k, v]) => `${k.replace(/_/g, ' ')} ${show(v)}`).join(', ');
  const paint = (node, row, t, q) => {
    node.style.background = colour((row.values[q.name] || [])[t], q.scale);
    if (row.clipped[t]) node.classList.add('gt-clip');
  };
  function draw() {
    const all = frames();
    state.step = Math.max(0, Math.min(all.length - 1, state.step));
    const frame = all[state.step];
    state.row = Math.max(0, Math.min(frame.rows.length - 1, state.row));
    for (let i = 0; i < data.quantities.length && !has(frame, state.quantity); i++) state.quantity = (state.quantity + 1) % data.quantities.length;
    const row = frame.rows[state.row], q = data.quantities[state.quantity];
    sets.forEach(([kind, node]) => node.setAttribute('aria-pressed', kind === state.kind));
    chosen.forEach((node, i) => {
      node.setAttribute('aria-pressed', i === state.quantity);
      node.hidden = !has(frame, i);
    });
    bars.step.hidden = all.length < 2;
    bars.step.style.display = all.length < 2 ? 'none' : '';
    bars.response.style.display = frame.rows.length < 2 ? 'none' : '';
    slider.max = all.length - 1; slider.value = state.step;
    label.textContent = `step ${frame.step}`;
    which.textContent = `${state.row + 1} of ${frame.rows.length}`;
    about.textContent = '';
    add(about, 'span', '', `−${show(q.scale)}`); add(about, 'span', 'gt-legend'); add(about, 'span', '', `+${show(q.scale)}   ${q.about}`);
    prompt.textContent = row.prompt; prompt.hidden = !row.prompt;
    big.textContent = '';
    row.tokens.forEach((text, t) => {
      const token = add(big, 'span', 'gt-token');
      token.tabIndex = 0; token.title = details(row, t);
      add(token, 'b', '', visible(text));
      add(token, 'i', '', small((row.values[q.name] || [])[t]));
      paint(token, row, t, q);
      const tell = () => { read.textContent = details(row, t); };
      token.addEventListener('mouseenter', tell); token.addEventListener('focus', tell); token.addEventListener('click', tell);
    });
    read.textContent = notes(row) || 'Point at a token, or tap it, for its numbers.';
    others.textContent = '';
    if (frame.rows.length > 1) frame.rows.forEach((other, i) => {
      const line = add(others, 'button', 'gt-row');
      line.type = 'button'; line.setAttribute('aria-pressed', i === state.row);
      line.addEventListener('click', () => { state.row = i; draw(); });
      add(line, 'em', '', `${i + 1}${'reward' in other.notes ? ` (${show(other.notes.reward)})` : ''}`);
      other.tokens.forEach((text, t) => paint(add(line, 'span', '', text), other, t, q));
    });
  }
  root.addEventListener('keydown', event => {
    if (event.target.tagName === 'INPUT' || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {ArrowLeft: () => state.row--, ArrowRight: () => state.row++, ArrowUp: () => state.step++, ArrowDown: () => state.step--,
      q: () => { state.quantity = (state.quantity + 1) % data.quantities.length; }, v: () => { state.kind = kinds[(kinds.indexOf(state.kind) + 1) % kinds.length]; }};
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    draw();
    root.focus({preventScroll: true});
  });
  state.step = frames().length - 1;
  draw();
}
