// Before the first paint, and a file of its own: the page's policy allows no inline script.
{
  const theme = localStorage.getItem("tunefleet.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
