// Shows a line while the console itself does not answer; htmx refreshes the rest of a page.
"use strict";
const setOffline = (isOffline) => {
  document.getElementById("offline").hidden = !isOffline;
};
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => setOffline(true));
}
document.addEventListener("htmx:afterOnLoad", () => setOffline(false));
