// Carries out the steps that it reads, one a line, with the client that is generated for Node; see ../README.md.
const fs = require('node:fs')
const readline = require('node:readline')
const grpc = require('@grpc/grpc-js')
const { GrpcTransport } = require('@protobuf-ts/grpc-transport')
const { LeasesClient, LogsClient, QueuesClient, TopicsClient } = require('./gen/duramen/v1/duramen.client')
const { Leases, Logs, Queues, Topics } = require('./gen/duramen/v1/duramen')
const { Status } = require('./gen/google/rpc/status')
const { ErrorInfo } = require('./gen/google/rpc/error_details')

const MESSAGE_BYTES_MAX = 33 << 20
const services = { Leases: [Leases, LeasesClient], Logs: [Logs, LogsClient], Queues: [Queues, QueuesClient], Topics: [Topics, TopicsClient] }
const transports = new Map()

// Nobody without TLS, or the user that the environment names.
function credentials() {
  const { SASL_USERNAME: user, SASL_PASSWORD: password, SSL_CA: authority } = process.env
  if (!user) return grpc.credentials.createInsecure()
  const metadata = new grpc.Metadata()
  metadata.set('authorization', `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`)
  const says = grpc.credentials.createFromMetadataGenerator((_, say) => say(null, metadata))
  return grpc.credentials.combineChannelCredentials(grpc.credentials.createSsl(fs.readFileSync(authority)), says)
}

const channelCredentials = credentials()

function transport(address) {
  if (!transports.has(address)) {
    const clientOptions = { 'grpc.max_receive_message_length': MESSAGE_BYTES_MAX }
    transports.set(address, new GrpcTransport({ host: address, channelCredentials, clientOptions }))
  }
  return transports.get(address)
}

// Calls a method that there is not.
async function missing(address) {
  const method = { ...Logs.methods.find((it) => it.name === 'OpenSession'), service: { typeName: 'duramen.v1.Nothing' }, name: 'Do' }
  await transport(address).unary(method, {}, {})
}

async function call({ address, method, request, take, deadline_s }, answers) {
  const [service, name] = method.split('.')
  if (service === 'Nothing') return missing(address)
  const [type, Client] = services[service]
  const info = type.methods.find((it) => it.name === name)
  const client = new Client(transport(address))
  const ending = new AbortController()
  const options = { timeout: deadline_s * 1000, abort: ending.signal }
  const calling = info.clientStreaming ? client[info.localName](options) : client[info.localName](info.I.fromJson(request), options)
  if (info.clientStreaming) {
    for (const each of request.requests) await calling.requests.send(info.I.fromJson(each))
    await calling.requests.complete()
  }
  if (!info.serverStreaming) {
    answers.push(info.O.toJson((await calling).response))
    return
  }
  for await (const answer of calling.responses) {
    const json = info.O.toJson(answer)
    if ('heartbeat' in json) continue
    answers.push(json)
    if (answers.length === take) break
  }
  if (take > 0 && answers.length === take) {
    // What is left of the call ends with the error of its end.
    for (const rest of [calling.status, calling.trailers, calling.headers]) rest.catch(() => {})
    ending.abort()
  }
}

function problem(error) {
  const told = { slug: '', code: grpc.status[error.code] ?? error.code, detail: error.message, metadata: {} }
  for (const text of [error.meta?.['grpc-status-details-bin'] ?? []].flat()) {
    const bytes = typeof text === 'string' ? Buffer.from(text, 'base64') : text
    for (const detail of Status.fromBinary(bytes).details) {
      if (!detail.typeUrl.endsWith('/google.rpc.ErrorInfo')) continue
      const info = ErrorInfo.fromBinary(detail.value)
      if (info.domain === 'duramen') Object.assign(told, { slug: info.reason, metadata: info.metadata })
    }
  }
  return told
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const told = { answers: [] }
    try {
      await call(JSON.parse(line), told.answers)
    } catch (error) {
      if (error.name !== 'RpcError') throw error
      told.problem = problem(error)
    }
    process.stdout.write(JSON.stringify(told) + '\n')
  }
  for (const each of transports.values()) each.close()
}

main()
