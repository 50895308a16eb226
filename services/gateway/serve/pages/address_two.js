// address_two.js: the gateway's address.js with --admin-listen: the other page is at another address, which is not told here.
export const separate = true;
document.querySelectorAll("nav a:not([aria-current])").forEach((link) => link.remove());
