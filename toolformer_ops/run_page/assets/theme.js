// Airflow's own choice of light or dark, before the page is drawn: it keeps the choice under "theme" in this origin's storage.
(function () {
  function apply() {
    var chosen = null;
    try { chosen = localStorage.getItem("theme"); } catch (error) { /* no storage: the system's choice */ }
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
  }
  apply();
  window.addEventListener("storage", apply);
})();
