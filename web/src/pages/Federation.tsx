export function Federation() {
  return <div className="page" />;
}
