export function Task() {
  return <div className="page" />;
}
