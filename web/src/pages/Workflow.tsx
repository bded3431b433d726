export function Workflow() {
  return <div className="page" />;
}
