// address_one.js: the gateway's address.js when it answers everything at one address: each page may link to the other.
export const separate = false;
