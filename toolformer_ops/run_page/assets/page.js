// What the page does besides being HTML: links out of Airflow's frame, live parts, forms that send themselves, copying.
"use strict";

// Airflow shows the page in a frame that may not navigate the window; of the same origin, so a link of the window itself can.
document.addEventListener("click", function (event) {
  const link = event.target.closest("a[target=_top]");
  if (!link || window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  window.parent.document.body.append(outer);
  outer.click();
  outer.remove();
});

function nameOf(detail) { return detail.querySelector("summary").textContent; }

// The state of the run that a page is about, by which its parts are in another order.
function stateOf(page) { return page.querySelector("header .state")?.textContent; }

// Fetch an address and put the parts of it that are marked `data-live="NAME"` in place of those of this page.
let newest = 0;
async function refresh(address) {
  const number = ++newest;
  document.body.classList.add("waiting");
  try {
    const answer = await fetch(address, { credentials: "same-origin", headers: { Accept: "text/html" } });
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    const waits = "untilThere" in document.body.dataset;  // this page says that there is no such page yet
    if (number !== newest || (!answer.ok && !(waits && answer.status === 404))) return false;
    if ((waits && answer.ok) || stateOf(made) !== stateOf(document)) { location.reload(); return true; }
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = made.querySelector('[data-live="' + part.dataset.live + '"]');
      if (!fresh) continue;
      const open = new Set(Array.from(part.querySelectorAll("details[open]"), nameOf));
      for (const detail of fresh.querySelectorAll("details")) detail.open ||= open.has(nameOf(detail));
      part.replaceWith(fresh);
    }
    if (!made.querySelector("[data-failed-tasks]")) {
      for (const place of document.querySelectorAll("[data-failed-tasks]")) place.remove();
    }
    lookAgain(address);
    askForFailedTasks();
    return true;
  } catch (error) {
    return false;
  } finally {
    if (number === newest) document.body.classList.remove("waiting");
  }
}

// What is being counted is there in a moment.
function lookAgain(address) {
  const number = newest;
  if (document.querySelector("[data-look-again]")) setTimeout(function () { if (number === newest) refresh(address); }, 2000);
}
lookAgain(location.href);

// A run that works: look again while somebody looks.
const again = Number(document.body.dataset.refreshSeconds || 0);
if (again > 0) {
  setInterval(function () {
    if (!document.hidden && !document.querySelector("form[data-live-form]:focus-within")) refresh(location.href);
  }, again * 1000);
}

// A form that sends itself: `data-submit` when a choice is made, `data-live-form` while a slider moves, without leaving the page.
for (const choice of document.querySelectorAll("form[data-submit] select")) {
  choice.addEventListener("change", function () { choice.form.requestSubmit(); });
}
for (const form of document.querySelectorAll("form[data-live-form]")) {
  let pending = 0;
  form.addEventListener("input", function (event) {
    const shown = form.querySelector('output[for="' + event.target.id + '"]');
    if (shown) shown.value = Number(event.target.value).toFixed(2);
    clearTimeout(pending);
    pending = setTimeout(function () {
      const address = new URL(form.action);
      address.search = new URLSearchParams(new FormData(form)).toString();
      refresh(address).then(function (done) { if (done) history.replaceState(null, "", address); });
    }, 150);
  });
}

// Copy the text of the element that the button names.
document.addEventListener("click", async function (event) {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch (error) {
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand("copy");
  }
  button.classList.add("done");
  setTimeout(function () { button.classList.remove("done"); }, 1500);
});

// What the failed tasks of a run said: asked of Airflow with the visitor's own rights, and shown as text. Each try's log is read once.
const notices = new Map();
async function showFailedTasks(place) {
  const run = "../api/v2/dags/" + encodeURIComponent(place.dataset.dagId) + "/dagRuns/" + encodeURIComponent(place.dataset.runId);
  async function read(path) {
    const answer = await fetch(run + path, { credentials: "same-origin", headers: { Accept: "application/json" } });
    return answer.ok ? answer.json() : null;
  }
  const found = await read("/taskInstances?state=failed&limit=10&order_by=end_date");
  if (!found) return;
  const shown = [];
  const failed = found.task_instances || [];
  const causes = failed.filter(function (task) { return !["check", "finish_run"].includes(task.task_id); });
  for (const task of causes.length ? causes : failed) {  // the last tasks are red only because others are
    const key = [task.task_id, task.map_index, task.try_number].join(" ");
    if (notices.has(key)) { shown.push(notices.get(key)); continue; }
    const log = await read("/taskInstances/" + encodeURIComponent(task.task_id) + "/logs/" + task.try_number + "?map_index=" + task.map_index + "&full_content=true");
    let said = "";
    for (const line of (log && log.content) || []) {
      if (typeof line !== "object" || !/error|critical/i.test(line.level || "")) continue;
      const thrown = (line.error_detail || []).map(function (one) { return one.exc_value; }).filter(Boolean);
      said = thrown.length ? thrown[thrown.length - 1] : line.event;
    }
    const notice = document.createElement("div");
    notice.className = "notice bad";
    const name = document.createElement("strong");
    name.textContent = task.task_id + (task.map_index >= 0 ? " [" + task.map_index + "]" : "") + ": ";
    const message = document.createElement("p");
    message.append(name, said || "its log says why");
    const link = document.createElement("a");
    link.href = "../dags/" + encodeURIComponent(place.dataset.dagId) + "/runs/" + encodeURIComponent(place.dataset.runId) +
      "/tasks/" + encodeURIComponent(task.task_id) + (task.map_index >= 0 ? "/mapped/" + task.map_index : "");
    link.target = "_top";
    link.textContent = "Log of the task";
    notice.append(message, link);
    if (log) notices.set(key, notice);
    shown.push(notice);
  }
  place.replaceChildren(...shown);
}
function askForFailedTasks() {
  for (const place of document.querySelectorAll("[data-failed-tasks]")) showFailedTasks(place).catch(function () {});
}
askForFailedTasks();

// Trigger a run through Airflow's API, with the visitor's own rights, and lead to it.
document.addEventListener("submit", async function (event) {
  const form = event.target.closest("form[data-trigger]");
  if (!form) return;
  event.preventDefault();
  const said = form.querySelector("output"), button = form.querySelector("button");
  const conf = JSON.parse(document.getElementById(form.dataset.conf).textContent);
  conf.finetune = form.elements.finetune.checked;
  button.disabled = true;
  said.textContent = "asking Airflow …";
  try {
    const answer = await fetch("../api/v2/dags/" + encodeURIComponent(form.dataset.trigger) + "/dagRuns", {
      method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify({ logical_date: null, conf: conf }),
    });
    const made = await answer.json();
    if (!answer.ok) throw new Error(typeof made.detail === "string" ? made.detail : JSON.stringify(made.detail || made));
    const link = document.createElement("a");
    link.href = "../dags/" + encodeURIComponent(form.dataset.trigger) + "/runs/" + encodeURIComponent(made.dag_run_id);
    link.target = "_top";
    link.textContent = made.dag_run_id;
    said.replaceChildren("Triggered: ", link);
  } catch (error) {
    said.textContent = "Airflow did not take it: " + error.message;
    button.disabled = false;
  }
});
