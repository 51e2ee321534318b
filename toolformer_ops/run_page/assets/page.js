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

// Fetch an address and put the parts of it that are marked `data-live="NAME"` in place of those of this page.
let newest = 0;
async function refresh(address) {
  const number = ++newest;
  document.body.classList.add("waiting");
  try {
    const answer = await fetch(address, { credentials: "same-origin", headers: { Accept: "text/html" } });
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (number !== newest || !answer.ok) return false;
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = made.querySelector('[data-live="' + part.dataset.live + '"]');
      if (fresh) part.replaceWith(fresh);
    }
    return true;
  } catch (error) {
    return false;
  } finally {
    if (number === newest) document.body.classList.remove("waiting");
  }
}

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
