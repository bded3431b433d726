export function Datasets() {
  return <div className="page" />;
}
