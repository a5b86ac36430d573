// The switch between light, dark and what the system asks for. Works without: then the system decides.
(function () {
  "use strict";
  const root = document.documentElement;
  const order = ["system", "light", "dark"];
  const remembered = {
    get() { try { return localStorage.getItem("unbroken-theme"); } catch { return null; } },
    set(value) { try { localStorage.setItem("unbroken-theme", value); } catch { /* a page of a file may remember nothing */ } },
  };
  function show(theme) {
    if (theme === "system") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.hidden = false;
      button.textContent = "Theme: " + theme;
    }
    document.dispatchEvent(new CustomEvent("unbroken:theme"));
  }
  let theme = order.includes(remembered.get()) ? remembered.get() : "system";
  show(theme);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-switch]")) return;
    theme = order[(order.indexOf(theme) + 1) % order.length];
    remembered.set(theme);
    show(theme);
  });
})();
