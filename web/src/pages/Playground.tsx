export function Playground() {
  return <div className="page" />;
}
