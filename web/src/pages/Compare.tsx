export function Compare() {
  return <div className="page" />;
}
