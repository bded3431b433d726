export function Federations() {
  return <div className="page" />;
}
