// theme.js: light or dark, as the system says or as the switch does. It is no module, so that it runs before anything is painted.
(function () {
    "use strict";
    const KEY = "fastdecode.theme", ORDER = ["system", "light", "dark"];
    const LABELS = { system: "Auto", light: "Light", dark: "Dark" };

    function stored() {
        try {
            const theme = localStorage.getItem(KEY);
            return ORDER.includes(theme) ? theme : "system";
        } catch {
            return "system"; // storage is switched off
        }
    }

    function apply(theme) {
        if (theme === "system") delete document.documentElement.dataset.theme;
        else document.documentElement.dataset.theme = theme;
    }

    function show(button, theme) {
        button.textContent = LABELS[theme];
        button.setAttribute("aria-label", `Colours: ${LABELS[theme].toLowerCase()}. Change`);
    }

    let theme = stored();
    apply(theme);
    document.addEventListener("DOMContentLoaded", () => {
        const button = document.getElementById("theme");
        show(button, theme);
        button.addEventListener("click", () => {
            theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
            apply(theme);
            show(button, theme);
            try {
                localStorage.setItem(KEY, theme);
            } catch { /* it holds for this page */ }
        });
    });
})();
