export function New() {
  return <div className="page" />;
}
