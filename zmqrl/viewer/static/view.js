"use strict";
// Text of runs is foreign: it becomes text nodes alone, never markup.

const COLOURS = ["#0b7fd3", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0c8599", "#a07800", "#5f3dc4", "#868e96", "#e8590c"];
const EVERY_MS = 2000;
const MOST_LINES = 200;
const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
const chosen = new Set();
let runs = [], now = 0, shown = null, chart = null, drawn = "", swept = "", asks = 0;

const at = (id) => document.getElementById(id);
const isDark = matchMedia("(prefers-color-scheme: dark)");

function element(tag, text, kind) {
  const made = document.createElement(tag);
  made.textContent = text ?? "";
  if (kind) made.className = kind;
  return made;
}

function tableRow(...cells) {
  const made = element("tr");
  made.append(...cells);
  return made;
}

const heads = (titles) => tableRow(...titles.map((title) => element("th", title)));
const cell = (text, kind) => element("td", text ?? "-", kind);
const count = (value) => (value === null ? "-" : value.toLocaleString("en"));
const decimal = (value) => (value === null ? "-" : value.toFixed(1));
const best = ({ best_score: score, best_by: name }) =>
  name === null || score === null ? decimal(score) : `${Number(score.toPrecision(4))} ${name}`;
const value = (data) => (data === null || typeof data === "string" ? data : JSON.stringify(data));

function age(seconds) {
  const [unit, size] = UNITS.find(([, size]) => seconds >= size) || UNITS[3];
  return `${Math.max(0, Math.floor(seconds / size))}${unit}`;
}

async function answer(path, parameters = []) {
  const query = new URLSearchParams(parameters);
  const response = await fetch(`${path}?${query}`);
  if (!response.ok) throw new Error(await response.text());
  return response;
}

const data = async (path, parameters) => (await answer(path, parameters)).json();
const named = () => [...chosen].slice(0, MOST_LINES).map((run) => ["run", run]);

function matching() {
  const words = at("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => {
    const text = [run.name, run.run_id, run.env, run.algorithm, run.host, run.user].join(" ").toLowerCase();
    return (!at("state").value || run.state === at("state").value) && words.every((word) => text.includes(word));
  });
}

function row(run) {
  const box = element("input"), open = element("button", run.name, "name"), selected = element("td"), name = element("td");
  box.type = "checkbox";
  box.checked = chosen.has(run.run_dir);
  box.dataset.choose = run.run_dir;
  box.setAttribute("aria-label", `draw ${run.name}`);
  open.type = "button";
  open.dataset.open = run.run_dir;
  name.append(open);
  if (run.reason) {
    name.append(element("div", run.reason, "reason"));
    name.lastChild.title = run.reason;
  }
  selected.append(box);
  return tableRow(
    selected, name, cell(run.state, run.live ? "live" : run.state), cell(decimal(run.train_return_mean_100), "number"),
    cell(best(run), "number"), cell(count(run.env_steps), "number"),
    cell(run.started_at === null ? null : age(now - run.started_at), "number"),
    cell(run.env), cell(run.algorithm), cell(run.host), cell(run.user),
    cell(run.job === null ? null : run.job + (run.position === null ? "" : ` (position ${run.position})`)),
  );
}

function list() {
  const found = matching(), body = at("rows");
  const [kind, run] = body.contains(document.activeElement) ? Object.entries(document.activeElement.dataset)[0] : [];
  body.replaceChildren(...found.map(row));
  if (kind) [...body.querySelectorAll(`[data-${kind}]`)].find((made) => made.dataset[kind] === run)?.focus();
  at("count").textContent = `${found.length} of ${runs.length}`;
}

function options(select, names, chosenName) {
  const before = [...select.options].map((option) => option.value).join("\n");
  if (before === names.join("\n")) return;
  select.replaceChildren(...names.map((name) => new Option(name || "all", name, false, name === chosenName)));
}

async function refreshList() {
  const found = await data("/api/runs");
  runs = found.runs;
  now = found.now;
  at("folder").textContent = found.folder;
  document.title = `zmqrl: ${found.folder}`;
  options(at("state"), ["", ...new Set(runs.map((run) => run.state))], at("state").value);
  list();
  const [head, ...jobs] = found.queue;
  at("queue").hidden = !head;
  if (!head) return;
  at("jobs-head").replaceChildren(heads(head.map((name) => name[0].toUpperCase() + name.slice(1))));
  at("jobs").replaceChildren(...jobs.map((job) => tableRow(...job.map((text) => cell(text)))));
}

function drawing(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text ?? "";
  return made;
}

function coordinates({ axes, drawn, best: first }) {
  const step = Math.max(110, (at("sweep-list").clientWidth - 90) / Math.max(1, axes.length - 1));
  const x = (axis) => 8 + step * axis, y = (height) => 175 - 145 * height;
  const made = drawing("svg", { width: x(axes.length - 1) + 80, height: 190, role: "img", "aria-label": "parallel coordinates" });
  made.append(...drawn.map(([trial, isComplete], line) => {
    const points = axes.map((axis, number) => `${x(number)},${y(axis.heights[line])}`).join(" ");
    const kind = `${isComplete ? "" : "ended-early"} ${trial === first ? "best" : ""}`;
    const path = drawing("polyline", { points, class: kind, opacity: trial === first ? 1 : 0.35 + 0.5 * axes.at(-1).heights[line] });
    path.append(drawing("title", {}, `trial ${trial}`));
    return path;
  }));
  axes.forEach((axis, number) => {
    made.append(drawing("line", { x1: x(number), x2: x(number), y1: y(0), y2: y(1) }));
    made.append(drawing("text", { x: x(number), y: 10, class: "axis" }, axis.name));
    made.append(...axis.texts.map(([height, text]) => drawing("text", { x: x(number) + 4, y: y(height) + 4 }, text)));
  });
  return made;
}

function trialRow([trial, ...cells], sweep) {
  const open = element("button", trial, "name"), first = element("td");
  open.type = "button";
  open.dataset.filter = `${sweep.name}/trial-${trial}/`;
  first.append(open);
  const shown = cells.map((each) => cell(typeof each === "number" ? Number(each.toPrecision(4)) : value(each)));
  const made = tableRow(first, ...shown);
  if (trial === sweep.best) made.className = "best";
  return made;
}

function sweepOf(sweep) {
  const made = element("div"), table = element("table"), scroll = element("div", "", "scroll"), wide = element("div", "", "scroll");
  const [head, ...rows] = sweep.table;
  made.append(element("h3", sweep.name), ...sweep.summary.map((line) => element("p", line)));
  if (!head) return made;
  table.append(heads(head), ...rows.map((each) => trialRow(each, sweep)));
  scroll.append(table);
  scroll.tabIndex = wide.tabIndex = 0;
  wide.append(coordinates(sweep));
  made.append(scroll, ...(sweep.drawn.length ? [wide] : []));
  return made;
}

async function refreshSweeps() {
  const found = await data("/api/sweeps");
  at("sweeps").hidden = !found.length;
  const text = JSON.stringify([found, at("sweep-list").clientWidth]);
  if (text === swept) return;
  swept = text;
  at("sweep-list").replaceChildren(...found.map(sweepOf));
}

function parameters() {
  const known = [["metric", at("metric").value || "train_return_mean_100"], ["x", at("axis").value]];
  return [...named(), ...known, ["smooth", at("smooth").value || "1"], ...(at("band").checked ? [["band", "1"]] : [])];
}

async function refreshCurves() {
  const number = ++asks;
  at("empty").hidden = chosen.size > 0;
  at("csv").hidden = chosen.size === 0;
  if (chosen.size === 0) {
    draw([]);
    return;
  }
  const asked = parameters();
  at("csv").href = `/api/points.csv?${new URLSearchParams(asked)}`;
  const found = await data("/api/curves", asked);
  if (number !== asks) return; // a later question was asked meanwhile
  const metric = at("metric").value || "train_return_mean_100";
  options(at("metric"), [...new Set([metric, ...found.metrics])].sort(), metric);
  draw(found.lines);
}

function draw(lines) {
  const text = JSON.stringify([lines, isDark.matches, at("chart").clientWidth, at("axis").value]);
  if (text === drawn) return;
  drawn = text;
  chart?.destroy();
  chart = null;
  if (!lines.length) return;
  const style = getComputedStyle(document.documentElement);
  const [ink, grid] = [style.getPropertyValue("--dim"), style.getPropertyValue("--line")];
  const series = [{ label: at("axis").value === "wall_s" ? "seconds" : at("axis").selectedOptions[0].text }], bands = [];
  lines.forEach((line, number) => {
    const stroke = COLOURS[number % COLOURS.length];
    const label = line.runs > 1 ? `${line.label} (${line.runs} runs)` : line.label;
    const points = { show: line.x.length === 1 };
    series.push({ label, stroke, width: 2, spanGaps: true, points });
    if (line.runs > 1) {
      bands.push({ series: [series.length + 1, series.length], fill: `${stroke}33` });
      for (const bound of ["low", "high"]) {
        series.push({ label: `${label}, ${bound}`, class: "bound", stroke: "transparent", spanGaps: true, points: { show: false } });
      }
    }
  });
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  const size = { width: Math.max(200, at("chart").clientWidth), height: 320 };
  const axes = [axis, { ...axis, size: 60 }], scales = { x: { time: false } };
  const tables = lines.map((line) => [line.x, line.value, ...(line.runs > 1 ? [line.low, line.high] : [])]);
  chart = new uPlot({ ...size, series, bands, axes, scales }, uPlot.join(tables), at("chart"));
}

async function refreshDifferences() {
  at("differences").hidden = chosen.size !== 2;
  if (chosen.size !== 2) return;
  const asked = named();
  const found = await data("/api/differences", asked);
  if (String(asked) !== String(named())) return;
  const names = [...chosen].map((run) => runs.find((known) => known.run_dir === run)?.name ?? run);
  at("different-runs").replaceChildren(heads(["Key", ...names]));
  at("different").replaceChildren(...(found.length ? found : [["no differences", "", ""]]).map(([key, ...values]) =>
    tableRow(element("th", key), ...values.map((each) => cell(value(each), "wrap")))));
}

function pairs(body, content) {
  body.replaceChildren(...Object.entries(content ?? {}).map(([name, data]) =>
    tableRow(element("th", name), cell(value(data), "wrap"))));
}

async function refreshDetails() {
  at("details").hidden = shown === null;
  if (shown === null) return;
  const asked = shown, found = await data("/api/details", [["run", shown]]);
  if (asked !== shown) return;
  const run = runs.find((known) => known.run_dir === shown);
  at("details-title").textContent = run ? run.name : shown;
  at("place").textContent = [run?.run_id, run?.state, shown].filter(Boolean).join(", ");
  const error = found.summary?.error || run?.reason;
  at("problems").replaceChildren(...Object.entries(found.problems).map(([text, severity]) => element("li", text, severity)), ...(error ? [element("li", error, "failed")] : []));
  at("hosts-head").replaceChildren(...found.hosts.slice(0, 1).map(heads));
  at("hosts").replaceChildren(...found.hosts.slice(1).map((cells) => tableRow(...cells.map((text) => cell(text)))));
  pairs(at("summary"), found.summary);
  pairs(at("config"), found.config);
  at("videos").hidden = !found.videos.length;
  options(at("video"), found.videos, at("video").value || found.videos.at(-1));
  showVideo();
  options(at("log"), found.logs, at("log").value);
  await refreshLog();
}

function showVideo() {
  const name = at("video").value, frame = at("video-frame");
  const source = name ? `/api/video?${new URLSearchParams([["run", shown], ["video", name]])}` : "";
  if (frame.dataset.source === source) return;
  frame.dataset.source = source;
  const made = element(name.endsWith(".gif") ? "img" : "video");
  if (name.endsWith(".gif")) made.alt = name;
  else made.controls = true;
  made.src = source;
  frame.replaceChildren(...(name ? [made] : []));
}

async function refreshLog() {
  const name = at("log").value, box = at("log-text");
  const text = name && shown !== null ? await (await answer("/api/log", [["run", shown], ["log", name]])).text() : "";
  if (box.textContent === text) return;
  const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  box.textContent = text;
  if (isAtEnd) box.scrollTop = box.scrollHeight;
}

async function reporting(...tasks) {
  try {
    for (const task of tasks) await task();
    at("error").hidden = true;
  } catch (error) {
    at("error").textContent = error instanceof TypeError ? "zmqrl view does not answer: start it again" : error.message;
    at("error").hidden = false;
  }
}

function isActive(run) {
  return run.live && (chosen.has(run.run_dir) || run.run_dir === shown);
}

async function follow() {
  const begun = performance.now();
  if (!document.hidden) {
    await reporting(refreshList, refreshSweeps);
    if (runs.some(isActive)) await reporting(refreshCurves, refreshDetails);
  }
  setTimeout(follow, Math.max(EVERY_MS, 3 * (performance.now() - begun)));
}

at("rows").addEventListener("change", (event) => {
  const run = event.target.dataset.choose;
  if (run === undefined) return;
  if (event.target.checked) chosen.add(run);
  else chosen.delete(run);
  reporting(refreshCurves, refreshDifferences);
});
at("rows").addEventListener("click", async (event) => {
  const run = event.target.dataset.open;
  if (run === undefined) return;
  shown = run;
  await reporting(refreshDetails);
  at("details").scrollIntoView({ block: "nearest" });
});
at("sweep-list").addEventListener("click", (event) => {
  if (event.target.dataset.filter === undefined) return;
  at("text").value = event.target.dataset.filter;
  list();
});
for (const id of ["text", "state"]) at(id).addEventListener("input", list);
for (const id of ["metric", "axis", "smooth", "band"]) at(id).addEventListener("change", () => reporting(refreshCurves));
for (const id of ["filters", "controls"]) at(id).addEventListener("submit", (event) => event.preventDefault());
at("log").addEventListener("change", () => reporting(refreshLog));
at("video").addEventListener("change", showVideo);
at("clear").addEventListener("click", () => {
  chosen.clear();
  list();
  reporting(refreshCurves, refreshDifferences);
});
isDark.addEventListener("change", () => reporting(refreshCurves));
addEventListener("resize", () => reporting(refreshCurves));
follow();
