import { bytes } from "../lib/format";

/** A file of an artifact in a table: a link that downloads it, and its size. */
export function FileRow({ id, file }: { id: string; file: { path: string; size_bytes: number } }) {
  const path = file.path.split("/").map(encodeURIComponent).join("/");
  return (
    <tr>
      <td>
        <a href={`/api/v1/artifacts/${id}/files/${path}`} download>
          {file.path}
        </a>
      </td>
      <td className="num muted">{bytes(file.size_bytes)}</td>
    </tr>
  );
}
