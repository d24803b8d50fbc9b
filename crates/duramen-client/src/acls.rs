//! Rules of access, for an administrator.

use duramen_protocol::messages::create_acls::AclCreation;
use duramen_protocol::messages::delete_acls::{DeleteAclsFilter, DeleteAclsMatchingAcl};
use duramen_protocol::messages::describe_acls::DescribeAclsResource;
use duramen_protocol::messages::{CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest};

use crate::client::Client;
use crate::error::Error;

fn what() -> String {
    "rules of access".to_owned()
}

impl Client {
    /// Returns the rules that a filter finds, by resource.
    pub async fn acls(
        &self,
        filter: &DeleteAclsFilter,
    ) -> Result<Vec<DescribeAclsResource>, Error> {
        let filter = filter.clone();
        let request = DescribeAclsRequest {
            resource_type_filter: filter.resource_type_filter,
            resource_name_filter: filter.resource_name_filter,
            pattern_type_filter: filter.pattern_type_filter,
            principal_filter: filter.principal_filter,
            host_filter: filter.host_filter,
            operation: filter.operation,
            permission_type: filter.permission_type,
        };
        self.retry(async || {
            let response = self.any().await?.call(&request).await?;
            Error::check(what, response.error_code, response.error_message.as_deref())?;
            Ok(response.resources)
        })
        .await
    }

    /// Makes rules. One that is there already stays.
    pub async fn create_acls(&self, creations: Vec<AclCreation>) -> Result<(), Error> {
        let request = CreateAclsRequest { creations };
        self.retry(async || {
            let response = self.controller().await?.call(&request).await?;
            for result in response.results {
                Error::check(what, result.error_code, result.error_message.as_deref())?;
            }
            Ok(())
        })
        .await
    }

    /// Takes the rules away that a filter finds. Returns them.
    pub async fn delete_acls(
        &self,
        filter: &DeleteAclsFilter,
    ) -> Result<Vec<DeleteAclsMatchingAcl>, Error> {
        let request = DeleteAclsRequest { filters: vec![filter.clone()] };
        self.retry(async || {
            let response = self.controller().await?.call(&request).await?;
            let result = Error::first(response.filter_results, what)?;
            Error::check(what, result.error_code, result.error_message.as_deref())?;
            Ok(result.matching_acls)
        })
        .await
    }
}
