export function Settings() {
  return <div className="page" />;
}
