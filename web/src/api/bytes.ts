// Bytes in JSON are base64.

export function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  return bytes;
}

export function textOf(bytes: Uint8Array): string {
  let binary = "";
  for (let place = 0; place < bytes.length; place += 8192) {
    binary += String.fromCharCode(...bytes.subarray(place, place + 8192));
  }
  return btoa(binary);
}

export function floatsOf(text: string): Float32Array {
  return new Float32Array(bytesOf(text).buffer);
}
