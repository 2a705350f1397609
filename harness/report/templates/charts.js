/* One small BokehJS figure a panel: thin raw values, a running mean, validations with dots. */
(function () {
  const page = JSON.parse(document.getElementById('page-data').textContent);
  const mean = (values, width) => values.map((_, i) => {
    const near = values.slice(Math.max(0, i + 1 - width), i + 1).filter(v => v !== null);
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : NaN;
  });
  const numbers = values => values.map(v => v === null ? NaN : v);
  Bokeh.set_log_level('error');
  function draw(panel, element) {
    const figure = Bokeh.Plotting.figure({height: 190, sizing_mode: 'stretch_width', tools: '', toolbar_location: null,
      x_axis_label: 'step', min_border_left: 45, min_border_right: 8});
    figure.add_tools(new Bokeh.HoverTool({tooltips: [['', '@name'], ['step', '@x'], ['', '@label']], mode: 'mouse'}));
    figure.title = '';
    if (panel.band) {
      const band = {fill_color: '#009e73', fill_alpha: 0.13, line_color: '#009e73', line_alpha: 0.5, level: 'underlay'};
      if (panel.band[0] !== null) band.bottom = panel.band[0];
      if (panel.band[1] !== null) band.top = panel.band[1];
      figure.add_layout(new Bokeh.BoxAnnotation(band));
    }
    const values = panel.series.flatMap(s => s.y).filter(v => v !== null);
    if (values.length) { /* the data decide what is seen, not the band */
      let low = Math.min(...values), high = Math.max(...values);
      const margin = (high - low || Math.abs(high) || 1) * 0.08;
      figure.y_range = new Bokeh.Range1d({start: low - margin, end: high + margin});
    }
    for (const s of panel.series) {
      const y = numbers(s.y), steps = s.x.map(String);
      const source = new Bokeh.ColumnDataSource({data: {x: s.x, y: y, mean: s.dots ? y : mean(s.y, 5),
        label: y.map(v => Number(v).toPrecision(4)), name: steps.map(() => s.name)}});
      const x = {field: 'x'};
      if (!s.dots) figure.line(x, {field: 'y'}, {source, line_color: s.colour, line_alpha: 0.4});
      figure.line(x, {field: 'mean'}, {source, line_color: s.colour, line_width: 2, line_dash: s.dash});
      if (s.dots || s.x.length < 3) figure.scatter(x, {field: 'y'}, {source, size: 6, fill_color: s.colour, line_color: s.colour});
    }
    Bokeh.Plotting.show(figure, element);
  }
  for (const panel of page.panels) {
    const element = document.getElementById(panel.id);
    const once = new IntersectionObserver(entries => {
      if (!entries.some(e => e.isIntersecting)) return;
      once.disconnect();
      draw(panel, element);
    }, {rootMargin: '600px'});
    once.observe(element);
  }
})();
