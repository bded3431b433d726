export function Campaign() {
  return <div className="page" />;
}
