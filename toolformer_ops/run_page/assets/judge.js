// A verdict by key: 1 to 4, and b for the call before. Buttons do the same.
"use strict";
let sent = false;
window.focus(); // In Airflow's frame, so that keys arrive here.
document.addEventListener("keydown", function (event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.closest("input, select, textarea")) return;
  const choice = document.querySelector('[data-key="' + CSS.escape(event.key.toLowerCase()) + '"]');
  if (!choice || sent) return;
  event.preventDefault();
  choice.click();
});
document.getElementById("verdicts").addEventListener("submit", function (event) {
  if (sent) event.preventDefault();
  sent = true;
});
// The browser keeps a page that one left and shows it again on "back".
addEventListener("pageshow", function () { sent = false; });
