// Shows a line while the console itself does not answer; htmx refreshes the rest of a page.
"use strict";
const setOffline = (isOffline) => {
  document.getElementById("offline").hidden = !isOffline;
};
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => setOffline(true));
}
document.addEventListener("htmx:afterOnLoad", () => setOffline(false));

// The key "/" goes to the search, unless somebody types.
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("everywhere");
  const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !field) return;
  event.preventDefault();
  field.focus();
  field.select();
});
