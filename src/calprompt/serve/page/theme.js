// The theme that was chosen before, set before anything is drawn; page.js has the switch.
try {
  const theme = localStorage.getItem("calprompt-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is forbidden here: the system's theme it is
}
