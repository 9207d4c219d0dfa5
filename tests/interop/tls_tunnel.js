'use strict';

/*
 * Carries connections of clients without TLS to servers with TLS, as stunnel does: one port here
 * for each server. Usage: node tls_tunnel.js CA.pem FROM_PORT=HOST:PORT ...
 */

const fs = require('node:fs');
const net = require('node:net');
const tls = require('node:tls');

const [ authority, ...ways ] = process.argv.slice(2);
const ca = fs.readFileSync(authority);

function carry(plain, host, port) {
  const inside = tls.connect({ host, port, ca });
  for (const [ from, to ] of [[ plain, inside ], [ inside, plain ]]) {
    from.on('error', error => console.error(error.message)).on('close', () => to.destroy());
    from.pipe(to);
  }
}

function listen(way) {
  const [ from, to ] = way.split('=');
  const [ host, port ] = to.split(':');
  return new Promise(resolve => {
    const server = net.createServer({ noDelay: true }, plain => carry(plain, host, Number(port)));
    server.listen(Number(from), '127.0.0.1', resolve);
  });
}

Promise.all(ways.map(listen)).then(() => console.log('ready'));
process.stdin.on('end', () => process.exit(0)).resume();
