// Draws every figure[data-chart] from the JSON in its script element. Stable for other scripts:
// UnbrokenCharts.drawAll(element), and UnbrokenCharts.update(figure, data), which keeps choice, zoom and focus. What is
// chosen and was not sent is asked for by an event "unbroken:choice" at the figure: its detail has the metric's name, and
// answer(data), to be called with the data of a chart in which it was. Until then the chart stays as it is.
(function () {
  "use strict";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const PAPER = 680; // pixels of a page of A4 between its margins
  const LOW = 0.85; // of its height on the screen has a chart on paper, so that more fit on a page
  let printing = false;
  const drawn = new Map();

  function isDark() {
    if (printing) return false;
    const said = document.documentElement.getAttribute("data-theme");
    return said ? said === "dark" : dark.matches;
  }

  // A figure comes in light colours; each has a dark counterpart.
  function coloured(value, colours) {
    if (typeof value === "string") return colours[value] || value;
    if (Array.isArray(value)) return value.map((one) => coloured(one, colours));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, colours)]));
    }
    return value;
  }

  function chosen(chart) {
    const select = chart.figure.querySelector("select[data-choice]");
    return select ? Number(select.value) : 0;
  }

  // Draws what is chosen, or asks for it where it was not sent.
  function show(chart) {
    const choice = chart.data.choices[chosen(chart)];
    if (!choice || choice.traces.length) return draw(chart);
    const answer = (data) => {
      if (chart.data.choices[chosen(chart)]?.name !== choice.name) return; // another one was chosen meanwhile
      chart.data = data;
      draw(chart);
    };
    chart.figure.dispatchEvent(new CustomEvent("unbroken:choice", { bubbles: true, detail: { metric: choice.name, answer } }));
  }

  function draw(chart) {
    const colours = isDark() ? chart.data.dark : {};
    const spec = coloured(chart.data.figure, colours);
    const choices = chart.data.choices;
    if (choices.length) {
      const shown = new Set([...choices[chosen(chart)].traces, ...chart.data.always]);
      spec.data.forEach((trace, number) => { trace.visible = shown.has(number); });
      if (spec.layout.yaxis && spec.layout.yaxis.title) spec.layout.yaxis.title.text = choices[chosen(chart)].label;
    }
    spec.layout.uirevision = String(choices.length ? chosen(chart) : 0);
    if (printing) Object.assign(spec.layout, { width: PAPER, height: LOW * spec.layout.height, autosize: false });
    if (calm.matches) spec.layout.transition = { duration: 0 };
    return Plotly.react(chart.plot, spec.data, spec.layout, { displayModeBar: false, responsive: true, scrollZoom: false });
  }

  // With the keyboard: arrows walk along the points of the first visible line, and the line below says where one is.
  function walk(chart, event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    const traces = chart.plot._fullData || [];
    const line = traces.findIndex((trace) => trace.visible === true && trace.type === "scatter" && trace.x && trace.x.length);
    if (line < 0) return;
    event.preventDefault();
    const last = traces[line].x.length - 1;
    const from = chart.at === null ? (steps[event.key] > 0 ? -1 : last + 1) : chart.at;
    chart.at = Math.min(last, Math.max(0, from + steps[event.key]));
    const trace = traces[line];
    const x = typeof trace.x[chart.at] === "number" ? trace.x[chart.at].toLocaleString("en") : trace.x[chart.at];
    const y = trace.y[chart.at];
    chart.readout.textContent = `${trace.meta || "at"} ${x}: ${y === null ? "no value" : Number(y).toPrecision(6)}`;
    try { Plotly.Fx.hover(chart.plot, [{ curveNumber: line, pointNumber: chart.at }]); } catch { /* outside of what is shown */ }
  }

  function set(figure) {
    const plot = figure.querySelector(".plot");
    const source = figure.querySelector('script[type="application/json"]');
    if (!plot || !source) return;
    const chart = { figure, plot, data: JSON.parse(source.textContent), at: null, readout: figure.querySelector(".readout") };
    drawn.set(figure, chart);
    const select = figure.querySelector("select[data-choice]");
    if (select) select.addEventListener("change", () => { chart.at = null; if (chart.readout) chart.readout.textContent = ""; show(chart); });
    if (chart.readout) plot.addEventListener("keydown", (event) => walk(chart, event));
    return draw(chart);
  }

  function drawAll(element) {
    for (const figure of (element || document).querySelectorAll("figure[data-chart]")) {
      if (!drawn.has(figure)) set(figure);
    }
  }

  function update(figure, data) {
    const chart = drawn.get(figure);
    if (!chart) return;
    chart.data = data;
    show(chart);
  }

  function again() { for (const chart of drawn.values()) draw(chart); }
  function print(begins) { printing = begins; again(); }

  document.addEventListener("unbroken:theme", again);
  dark.addEventListener("change", again);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  globalThis.UnbrokenCharts = { drawAll, update };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => drawAll());
  else drawAll();
})();
