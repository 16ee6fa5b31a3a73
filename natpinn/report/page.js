"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#1f77b4", "#d95f02", "#2ca02c", "#c0392b", "#8e5bc0", "#8c6d1f", "#e377c2",
  "#5f7d8c", "#9a9a1e", "#17a2b8"];
const PLOTS = [
  ["seconds", "error", "seconds of training", "error"],
  ["step", "error", "steps", "error"],
  ["seconds", "loss", "seconds of training", "loss"],
  ["step", "loss", "steps", "loss"],
];

function make(parent, tag, options = {}, text = "") {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) node.setAttribute(key, value);
  node.textContent = text;
  parent.appendChild(node);
  return node;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-2 || Math.abs(value) >= 1e5)) {
    return value.toExponential(digits - 1);
  }
  return String(Number(value.toPrecision(digits)));
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(horizontal, vertical, logVertical) {
  const grid = { gridcolor: style("--line"), zeroline: false, linecolor: style("--line") };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    margin: { l: 64, r: 14, t: 12, b: 46 }, hovermode: "closest",
    font: { color: style("--text"), size: 12, family: "system-ui, sans-serif" },
    xaxis: { ...grid, type: "log", title: { text: horizontal }, exponentformat: "power" },
    yaxis: { ...grid, type: logVertical ? "log" : "linear", title: { text: vertical },
      exponentformat: "power", rangemode: logVertical ? "normal" : "tozero" },
  };
}

/* Methods have a colour each; runs that differ in their seed share it. */
function series(problem) {
  const methods = [...new Set(problem.runs.map((run) => run.method))];
  const optimizers = {};
  const found = methods.map((method, i) => {
    const runs = problem.runs.filter((run) => run.method === method);
    const color = COLORS[i % COLORS.length];
    optimizers[runs[0].optimizer] ??= color;
    return { label: method, color, dash: "solid", curves: runs.map((run) => run.curve) };
  });
  for (const curve of problem.published) {
    optimizers[curve.optimizer] ??= COLORS[Object.keys(optimizers).length % COLORS.length];
    const color = optimizers[curve.optimizer];
    found.push({ label: `published ${curve.name}`, color, dash: "dash", curves: [curve] });
  }
  return found;
}

function traces(all, x, y) {
  return all.flatMap((one, i) => one.curves.filter((curve) => curve[y].length).map((curve) => ({
    x: curve[x], y: curve[y], mode: "lines", name: curve.name, meta: i,
    connectgaps: y === "effective_dimension", // which not every evaluation has
    line: { color: one.color, width: one.dash === "solid" ? 1.8 : 1.3, dash: one.dash },
    hovertemplate: "%{fullData.name}<br>%{y:.3e} at %{x:.4g}<extra></extra>",
  })));
}

function drawPlots(section, problem, all) {
  const kinds = PLOTS.map(([x, y, horizontal, vertical]) =>
    [x, y, horizontal, y === "error" ? problem.criterion : vertical, true]);
  if (problem.runs.some((run) => run.curve.effective_dimension.length)) {
    kinds.push(["step", "effective_dimension", "steps", "effective dimension", false]);
  }
  const parent = make(section, "div", { class: "plots" });
  const nodes = kinds.map(([x, y]) => make(parent, "div", { class: "plot", "data-x": x, "data-y": y }));
  kinds.forEach(([x, y, horizontal, vertical, isLog], i) => {
    const draw = () => layout(horizontal, vertical, isLog);
    Plotly.newPlot(nodes[i], traces(all, x, y), draw(), { displaylogo: false, displayModeBar: false });
    new ResizeObserver(() => Plotly.Plots.resize(nodes[i])).observe(nodes[i]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      Plotly.relayout(nodes[i], draw()));
  });
  return nodes;
}

function drawLegend(section, all, plots) {
  const legend = make(section, "div", { class: "legend", role: "group", "aria-label": "curves" });
  all.forEach((one, i) => {
    const count = one.curves.length > 1 ? ` (${one.curves.length} runs)` : "";
    const kind = one.dash === "solid" ? "ours" : "published";
    const button = make(legend, "button", { type: "button", "aria-pressed": "true", class: kind });
    make(button, "i", { style: `border-color:${one.color}` });
    button.append(one.label + count);
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(isOn));
      for (const plot of plots) {
        const mine = plot.data.flatMap((trace, k) => (trace.meta === i ? [k] : []));
        if (mine.length) Plotly.restyle(plot, { visible: isOn }, mine);
      }
    });
  });
  section.insertBefore(legend, plots[0].parentNode);
}

/* A column: its head, the value that it is sorted by, and what is shown. */
function columns() {
  const text = (head, value) => ({ head, value, show: value, kind: "text" });
  const plain = (head, value) => ({ head, value, show: (run) => number(value(run)), kind: "" });
  return [
    text("run", (run) => run.name),
    { ...text("status", (run) => run.status), isStatus: true },
    plain("points", (run) => run.points),
    plain("error", (run) => run.error),
    plain("best error", (run) => run.best),
    plain("final error", (run) => run.final),
    ...data.errors.map((error, i) =>
      plain(`s to ${error.toExponential(0)}`, (run) => run.times[i])),
    plain("seconds", (run) => run.seconds),
    plain("steps", (run) => run.steps),
    plain("steps/s", (run) => run.rate),
    { head: "peak memory", value: (run) => run.memory, kind: "",
      show: (run) => (run.memory === null ? "–" : `${number(run.memory / 1e6)} MB`) },
    { ...text("settings", (run) =>
      Object.entries(run.settings).map(([key, value]) => `${key} ${value}`).join(", ")),
      kind: "text settings" },
    { ...text("run again", (run) => run.command), isCode: true },
  ];
}

function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

function drawTable(section, problem) {
  const table = make(make(section, "div", { class: "scroll" }), "table");
  const head = make(make(table, "thead"), "tr");
  const body = make(table, "tbody");
  const all = columns();
  const rows = problem.runs.map((run) => {
    const row = make(body, "tr");
    for (const column of all) {
      const cell = make(row, "td", { class: column.kind });
      const shown = column.show(run);
      if (column.isCode) make(cell, "code", {}, shown);
      else cell.textContent = shown;
      if (column.isStatus) {
        cell.classList.add(run.status);
        if (run.message) cell.title = run.message;
      }
    }
    return { run, row };
  });
  all.forEach((column) => {
    const cell = make(head, "th", { class: column.kind.split(" ")[0], scope: "col" });
    const button = make(cell, "button", { type: "button" }, column.head);
    button.addEventListener("click", () => {
      const isUp = cell.getAttribute("aria-sort") !== "ascending";
      for (const other of head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      rows.sort((a, b) => {
        const [left, right] = [column.value(a.run), column.value(b.run)];
        const isEmpty = left === null || right === null;
        return (isUp || isEmpty ? 1 : -1) * compare(left, right);
      });
      rows.forEach(({ row }) => body.appendChild(row));
    });
  });
}

function drawPictures(section, problem) {
  const pictured = problem.runs.filter((run) => run.picture);
  if (!pictured.length) return;
  make(section, "h3", {}, "What was learned");
  const parent = make(section, "div", { class: "pictures" });
  for (const run of pictured) {
    const figure = make(parent, "figure");
    make(figure, "img", { src: run.picture, alt: `solution of ${run.name}`, loading: "lazy" });
    make(figure, "figcaption", {}, `${run.name}, error ${number(run.error)}`);
  }
}

for (const problem of data.problems) {
  const section = make(document.getElementById("problems"), "section");
  make(section, "h2", {}, problem.name);
  const devices = [...new Set(problem.runs.map((run) => run.device).filter(Boolean))];
  if (devices.length) make(section, "p", { class: "note" }, `on ${devices.join(", ")}`);
  const all = series(problem);
  const plots = drawPlots(section, problem, all);
  drawLegend(section, all, plots);
  make(section, "h3", {}, "Runs");
  drawTable(section, problem);
  drawPictures(section, problem);
}
if (data.left_out.length) {
  const section = make(document.getElementById("problems"), "section");
  make(section, "h2", {}, "Left out");
  const list = make(section, "ul", { class: "note" });
  for (const reason of data.left_out) make(list, "li", {}, reason);
}
