export function Workers() {
  return <div className="page" />;
}
