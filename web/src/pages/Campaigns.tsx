export function Campaigns() {
  return <div className="page" />;
}
