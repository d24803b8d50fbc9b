//! The `tls` command: makes certificates to begin with, and shows what is in a file.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use data_encoding::HEXLOWER;
use jiff::{Timestamp, ToSpan, Zoned};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::bootstrap::Output;
use super::screen::Table;

/// Years for which an authority vouches.
const CA_YEARS: i16 = 10;
/// Files of the authority.
const CA: &str = "ca.pem";
const CA_KEY: &str = "ca-key.pem";

/// Arguments of `duramen tls`.
#[derive(Debug, Args)]
pub struct TlsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make an authority, and a certificate with its key for each node
    Init(Init),
    /// Show the certificates of a file in PEM: names, times, days left
    Show(Show),
}

/// Arguments of `duramen tls init`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  duramen tls init --node broker-1.example.com,10.0.0.1 --node broker-2.example.com --out certs
  duramen serve --open --set listeners=SSL://0.0.0.0:9093 \\
      --set ssl.keystore.location=certs/broker-1.example.com.pem
  duramen tls init --client alice --out certs
  duramen produce greetings --bootstrap broker-1.example.com:9093 --tls-ca certs/ca.pem

Run it again with the same directory for more nodes: it keeps the authority. Keep ca-key.pem away
from the nodes.")]
struct Init {
    /// Names and addresses by which clients reach a node, separated by commas. May be repeated, once for each node
    #[arg(long = "node", value_name = "HOST[,HOST]", required_unless_present = "clients")]
    nodes: Vec<String>,
    /// Name of a client, for a certificate that it shows. May be repeated
    #[arg(long = "client", value_name = "NAME")]
    clients: Vec<String>,
    /// Directory for the files
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Days for which the certificates of nodes and clients are valid
    #[arg(long, value_name = "N", default_value_t = 397, value_parser = clap::value_parser!(i32).range(1..=3650))]
    days: i32,
    #[command(flatten)]
    output: Output,
}

/// Arguments of `duramen tls show`.
#[derive(Debug, Args)]
struct Show {
    /// The file
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// A file that `tls init` made.
#[derive(Debug, Serialize)]
struct Made {
    path: PathBuf,
    content: String,
}

/// A certificate.
#[derive(Debug, Serialize)]
struct Shown {
    subject: String,
    issuer: String,
    names: Vec<String>,
    valid_from: String,
    valid_to: String,
    days_left: i64,
}

impl TlsCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Init(init) => init.run(),
            Action::Show(show) => show.run(),
        }
    }
}

/// Files of certificates for trying things out on one machine.
#[derive(Debug)]
pub(super) struct ThrowAway {
    /// Certificate of the authority.
    pub(super) ca: PathBuf,
    /// Certificate and key of all nodes.
    pub(super) node: PathBuf,
}

impl ThrowAway {
    /// Makes the files in a directory, or finds those of an earlier time.
    pub(super) fn make(out: PathBuf, host: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
        let names = ["localhost", "127.0.0.1", "::1", host].map(str::to_owned);
        let (ca, node) = (out.join(CA), out.join("localhost.pem"));
        if !node.exists() {
            let init = Init {
                nodes: Vec::new(),
                clients: Vec::new(),
                out,
                days: 397,
                output: Output::default(),
            };
            let authority = init.authority(&mut Vec::new())?;
            init.certify(of_node(names.to_vec())?, "localhost", &authority)?;
        }
        Ok(Self { ca, node })
    }
}

/// Begins the certificate of a node, which is also dialled by other nodes, and dials them.
fn of_node(names: Vec<String>) -> anyhow::Result<CertificateParams> {
    let mut wanted = CertificateParams::new(names)?;
    wanted.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(wanted)
}

impl Init {
    fn run(self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("cannot make {}", self.out.display()))?;
        let mut made = Vec::new();
        let authority = self.authority(&mut made)?;
        for node in &self.nodes {
            let names: Vec<String> = node
                .split(',')
                .map(str::trim)
                .filter(|it| !it.is_empty())
                .map(Into::into)
                .collect();
            let first = names.first().context("--node: there is no name")?.clone();
            let wanted = of_node(names.clone())
                .with_context(|| format!("--node {node}: no name that a certificate can have"))?;
            let path = self.certify(wanted, &first, &authority)?;
            made.push(Made {
                path,
                content: format!("certificate and key of {}", names.join(", ")),
            });
        }
        for client in &self.clients {
            let mut wanted = CertificateParams::new(Vec::<String>::new())?;
            wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let path = self.certify(wanted, client, &authority)?;
            let content = format!("certificate and key of the client User:CN={client}");
            made.push(Made { path, content });
        }
        self.output.print_list(&made, "nothing to make", |made| {
            let mut table = Table::new(&["FILE", "CONTENT"]);
            for it in made {
                table.row(&[&it.path.display(), &it.content]);
            }
            table
        })
    }

    /// Makes a key, has the authority vouch for it under a name, and writes both into a file of that name.
    fn certify(
        &self,
        mut wanted: CertificateParams,
        name: &str,
        authority: &Issuer<'static, KeyPair>,
    ) -> anyhow::Result<PathBuf> {
        wanted.distinguished_name = DistinguishedName::new();
        wanted.distinguished_name.push(DnType::CommonName, name);
        wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        limit(&mut wanted, self.days)?;
        let key = KeyPair::generate()?;
        let certificate = wanted.signed_by(&key, authority)?;
        let path = self.out.join(format!("{}.pem", name.replace([':', '/'], "_")));
        write_new(&path, &(certificate.pem() + &key.serialize_pem()), true)?;
        Ok(path)
    }

    /// Reads the authority of the directory, or makes one.
    fn authority(&self, made: &mut Vec<Made>) -> anyhow::Result<Issuer<'static, KeyPair>> {
        let (path, key_path) = (self.out.join(CA), self.out.join(CA_KEY));
        if key_path.exists() {
            let read = |path: &Path| {
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))
            };
            let key = KeyPair::from_pem(&read(&key_path)?)
                .with_context(|| format!("{} is no key", key_path.display()))?;
            return Issuer::from_ca_cert_pem(&read(&path)?, key)
                .with_context(|| format!("{} is no authority's certificate", path.display()));
        }
        let key = KeyPair::generate()?;
        let mut wanted = CertificateParams::new(Vec::<String>::new())?;
        // Two authorities of one name would pass for each other until a signature does not fit.
        let end = key.public_key_raw().len().saturating_sub(4);
        let name = format!("Duramen authority {}", HEXLOWER.encode(&key.public_key_raw()[end..]));
        wanted.distinguished_name = DistinguishedName::new();
        wanted.distinguished_name.push(DnType::CommonName, name);
        wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        limit(&mut wanted, i32::from(CA_YEARS) * 365)?;
        let certificate = wanted.self_signed(&key)?;
        write_new(&key_path, &key.serialize_pem(), true)?;
        write_new(&path, &certificate.pem(), false)?;
        for (path, content) in [
            (path, "certificate of the authority: give it to clients"),
            (key_path, "key of the authority: keep it secret"),
        ] {
            made.push(Made { path, content: content.to_owned() });
        }
        Ok(Issuer::new(wanted, key))
    }
}

/// Makes a certificate valid from yesterday on, so that clocks may differ a little.
fn limit(wanted: &mut CertificateParams, days: i32) -> anyhow::Result<()> {
    let today = Zoned::now().date();
    let day = |days: i32| {
        let date = today.checked_add(days.days())?;
        let (month, day) = (u8::try_from(date.month()), u8::try_from(date.day()));
        let (month, day) = (month.unwrap_or(1), day.unwrap_or(1));
        anyhow::Ok(rcgen::date_time_ymd(i32::from(date.year()), month, day))
    };
    (wanted.not_before, wanted.not_after) = (day(-1)?, day(days)?);
    Ok(())
}

/// Writes a file that is not there yet. Only its owner reads it if it is secret.
fn write_new(path: &Path, text: &str, is_secret: bool) -> anyhow::Result<()> {
    let mode = if is_secret { 0o600 } else { 0o644 };
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = file.with_context(|| {
        format!("cannot make {}: move one that is there out of the way", path.display())
    })?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

impl Show {
    fn run(self) -> anyhow::Result<()> {
        let path = self.file.display();
        let text = std::fs::read(&self.file).with_context(|| format!("cannot read {path}"))?;
        let mut shown = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.with_context(|| format!("{path} is not PEM"))?;
            shown.push(show(&certificate).with_context(|| format!("{path}: a certificate"))?);
        }
        self.output.print_list(&shown, "no certificate in PEM", |shown| {
            let mut table = Table::new(&["SUBJECT", "NAMES", "ISSUER", "FROM", "TO", "DAYS LEFT"]);
            for it in shown {
                let names = it.names.join(", ");
                let cells: [&dyn Display; 6] =
                    [&it.subject, &names, &it.issuer, &it.valid_from, &it.valid_to, &it.days_left];
                table.row(&cells);
            }
            table
        })
    }
}

fn show(certificate: &CertificateDer<'_>) -> anyhow::Result<Shown> {
    let (_, parsed) = X509Certificate::from_der(certificate)?;
    let time = |it: x509_parser::time::ASN1Time| Timestamp::from_second(it.timestamp());
    let (from, to) = (time(parsed.validity().not_before)?, time(parsed.validity().not_after)?);
    let alternative = parsed.subject_alternative_name()?;
    let names = alternative.iter().flat_map(|it| &it.value.general_names);
    let name = |it: &GeneralName<'_>| match it {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => address(bytes),
        other => other.to_string(),
    };
    Ok(Shown {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        names: names.map(name).collect(),
        valid_from: from.to_string(),
        valid_to: to.to_string(),
        days_left: (to.as_second() - Timestamp::now().as_second()).div_euclid(24 * 3600),
    })
}

/// Writes an address of a certificate, which has four or sixteen bytes.
fn address(bytes: &[u8]) -> String {
    let four = <[u8; 4]>::try_from(bytes).map(|it| std::net::Ipv4Addr::from(it).to_string());
    let sixteen = || <[u8; 16]>::try_from(bytes).map(|it| std::net::Ipv6Addr::from(it).to_string());
    four.or_else(|_| sixteen()).unwrap_or_else(|_| HEXLOWER.encode(bytes))
}
